// Plans that are kept, by what they follow from: the second call of a layout plans nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "diglot/launch/plan.h"
#include "torch/python_abi.h"

namespace diglot::torch_binding {

using PlanKey = std::vector<int64_t>;

struct KeptPlan {
  Plan plan;
  mutable std::atomic<PyObject*> name{nullptr};  // of the variant, interned, once it was asked for

  // With Python's lock.
  PyObject* variant() const;
};

// Of one launcher. Any thread may use it at any time.
class PlanCache {
 public:
  PlanCache();
  // Forgets the plans of all launchers, and begins another generation of plans.
  static void clear_all();
  static std::uint64_t generation();

  // Null if there is none.
  std::shared_ptr<const KeptPlan> find(const PlanKey& key);
  // Keeps it, unless the generation in which it was begun is over: it may be by older numbers.
  std::shared_ptr<const KeptPlan> keep(const PlanKey& key, Plan plan, std::uint64_t generation);

 private:
  // Of kept plans, with one for each plan. More are not kept: all are forgotten, and made anew.
  static constexpr std::size_t kMostSteps = 4096;
  struct Hash {
    std::size_t operator()(const PlanKey& key) const;
  };

  std::unordered_map<PlanKey, std::shared_ptr<const KeptPlan>, Hash> plans_;
  std::size_t steps_ = 0;
};

// (bytes, zeroed, lifetime, group).
PyObject* to_python(const Scratch& scratch);
// (variant, [(kernel, grid, block, shared_bytes, cluster_blocks, flags), ...], scratch or None,
// [(name, value), ...] of the tunables that decided).
PyObject* to_python(const Plan& plan);

}  // namespace diglot::torch_binding
