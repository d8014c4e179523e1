// How a planner asks a store of measured plans for the best numbers of a problem. The store is
// Python's (python/diglot/backends/choosing.py). Without a store, planners choose nothing.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "diglot/launch/operand.h"
#include "diglot/launch/tunables.h"

namespace diglot {

// A launcher's op, and its own name.
struct LauncherName {
  std::string_view op, launcher;
};

// The facts that two calls share if the same numbers are best for both.
struct Problem {
  LauncherName name;
  std::string gpu;                       // the short name; "" if unknown
  std::vector<const Operand*> operands;  // their dtypes count; null where one is absent
  std::string layout;
  std::vector<int64_t> shape;
};

// Numbers by the names of tunables. A number holds for all entries of a table.
using ChosenNumbers = std::vector<Tunables::Entry>;
// Returns null to choose nothing.
using Chooser = std::shared_ptr<const ChosenNumbers> (*)(const Problem& problem);

inline std::atomic<Chooser>& chooser() {
  static std::atomic<Chooser> instance{nullptr};
  return instance;
}

}  // namespace diglot
