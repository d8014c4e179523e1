// A cache of plans: the second call with a layout plans nothing.
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
  mutable std::atomic<PyObject*> name{nullptr};  // the variant's, interned at the first request

  // Needs Python's lock.
  PyObject* variant() const;
};

// The plans of one launcher. Any thread may use it at any time.
class PlanCache {
 public:
  PlanCache();
  // Forgets the plans of all launchers, and begins a new generation of plans.
  static void clear_all();
  static std::uint64_t generation();

  // Null if no plan is kept for the key.
  std::shared_ptr<const KeptPlan> find(const PlanKey& key);
  // Keeps a plan, unless its generation is over: older numbers may have made it.
  std::shared_ptr<const KeptPlan> keep(const PlanKey& key, Plan plan, std::uint64_t generation);

 private:
  // The limit on kept plans: their steps, and one for each plan. Beyond it all plans are forgotten.
  static constexpr std::size_t kMostSteps = 4096;
  struct Hash {
    std::size_t operator()(const PlanKey& key) const;
  };

  std::unordered_map<PlanKey, std::shared_ptr<const KeptPlan>, Hash> plans_;
  std::size_t steps_ = 0;
};

// (bytes, zeroed, lifetime).
PyObject* to_python(const Scratch& scratch);
// (variant, [(kernel, grid, block, shared_bytes, cluster_blocks, flags), ...], scratch or None,
// [(name, value), ...] of the tunables that decided).
PyObject* to_python(const Plan& plan);

}  // namespace diglot::torch_binding
