// What a planner asks of a store of measured plans: the numbers that were best for a problem. The
// store is Python's (python/diglot/backends/choosing.py); without one nothing is chosen.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "diglot/launch/operand.h"
#include "diglot/launch/tunables.h"

namespace diglot {

// Of which op a launcher is, and its own name.
struct LauncherName {
  std::string_view op, launcher;
};

// What two calls have in common that should run alike.
struct Problem {
  LauncherName name;
  std::string gpu;                       // its short name; "": not known
  std::vector<const Operand*> operands;  // whose dtypes matter; null: one that is absent
  std::string layout;
  std::vector<int64_t> shape;
};

// Numbers by the names of tunables, for every entry of a table.
using ChosenNumbers = std::vector<Tunables::Entry>;
// Null: nothing is chosen.
using Chooser = std::shared_ptr<const ChosenNumbers> (*)(const Problem& problem);

inline std::atomic<Chooser>& chooser() {
  static std::atomic<Chooser> instance{nullptr};
  return instance;
}

}  // namespace diglot
