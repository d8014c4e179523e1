#include "torch/plans.h"

#include <mutex>

#include "diglot/launch/fork_safe_mutex.h"

namespace diglot::torch_binding {

PyObject* KeptPlan::variant() const {
  PyObject* known = name.load(std::memory_order_acquire);
  if (known == nullptr) {
    known = PyUnicode_InternFromString(plan.variant);
    if (known == nullptr) return nullptr;
    name.store(known, std::memory_order_release);  // kept for ever: there are few variants
  }
  Py_IncRef(known);
  return known;
}

// Multiplies and mixes each word (the finalizer of MurmurHash3).
std::size_t PlanCache::Hash::operator()(const PlanKey& key) const {
  uint64_t hash = key.size();
  for (const int64_t word : key) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 33;
  }
  return hash;
}

namespace {

std::mutex& plans_mutex() { return fork_safe_mutex<PlanCache>(); }

// Needs that mutex. Never destroyed, as the caches are not.
std::vector<PlanCache*>& all_caches() {
  static std::vector<PlanCache*>& caches = *new std::vector<PlanCache*>;
  return caches;
}

// Needs that mutex.
std::uint64_t current_generation = 0;

}  // namespace

PlanCache::PlanCache() {
  const std::lock_guard lock(plans_mutex());
  all_caches().push_back(this);
}

void PlanCache::clear_all() {
  const std::lock_guard lock(plans_mutex());
  ++current_generation;
  for (PlanCache* const cache : all_caches()) {
    cache->plans_.clear();
    cache->steps_ = 0;
  }
}

std::uint64_t PlanCache::generation() {
  const std::lock_guard lock(plans_mutex());
  return current_generation;
}

std::shared_ptr<const KeptPlan> PlanCache::find(const PlanKey& key) {
  const std::lock_guard lock(plans_mutex());
  const auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : found->second;
}

std::shared_ptr<const KeptPlan> PlanCache::keep(const PlanKey& key, Plan plan,
                                                std::uint64_t generation) {
  const std::size_t steps = 1 + plan.steps.size();
  const auto entry = std::make_shared<KeptPlan>();
  entry->plan = std::move(plan);
  decltype(plans_) forgotten;  // destroyed without the lock
  const std::lock_guard lock(plans_mutex());
  if (generation != current_generation) return entry;
  if (steps_ + steps > kMostSteps) {
    forgotten.swap(plans_);
    steps_ = 0;
  }
  const auto [place, is_new] = plans_.emplace(key, entry);
  if (is_new) steps_ += steps;
  return place->second;
}

PyObject* to_python(const Scratch& scratch) {
  constexpr const char* kLifetimes[] = {"call", "stream"};
  return Py_BuildValue("(LLs)", static_cast<long long>(scratch.bytes),
                       static_cast<long long>(scratch.zeroed),
                       kLifetimes[static_cast<int>(scratch.lifetime)]);
}

namespace {

// Takes over a reference to an item, which may be null after an error. False after an error.
bool append(PyObject* list, PyObject* item) {
  const bool is_added = item != nullptr && PyList_Append(list, item) == 0;
  Py_XDECREF(item);
  return is_added;
}

PyObject* flags_of(const Launch& how) {
  PyObject* const list = PyList_New(0);
  const std::pair<bool, const char*> flags[] = {{how.is_cooperative, "cooperative"},
                                                {how.is_persistent, "persistent"},
                                                {how.uses_pdl, "pdl"}};
  for (const auto& [is_set, name] : flags) {
    if (list != nullptr && is_set && !append(list, PyUnicode_InternFromString(name))) {
      Py_DECREF(list);
      return nullptr;
    }
  }
  PyObject* const tuple = list == nullptr ? nullptr : PyList_AsTuple(list);
  Py_XDECREF(list);
  return tuple;
}

PyObject* tuple_of(const Numbers& numbers) {
  PyObject* const list = PyList_New(0);
  for (const auto& [name, value] : numbers) {
    if (list != nullptr &&
        !append(list, Py_BuildValue("(sL)", name, static_cast<long long>(value)))) {
      Py_DECREF(list);
      return nullptr;
    }
  }
  PyObject* const tuple = list == nullptr ? nullptr : PyList_AsTuple(list);
  Py_XDECREF(list);
  return tuple;
}

PyObject* to_python(const Step& step) {
  PyObject* const flags = flags_of(step.how);
  PyObject* const order = flags == nullptr ? nullptr : tuple_of(step.order);
  if (order == nullptr) {
    Py_XDECREF(flags);
    return nullptr;
  }
  const auto &grid = step.how.grid, &block = step.how.block;
  return Py_BuildValue("(s(III)(III)nINN)", step.kernel.name().c_str(), grid.x, grid.y, grid.z,
                       block.x, block.y, block.z, static_cast<Py_ssize_t>(step.how.shared_bytes),
                       step.how.cluster_blocks, flags, order);
}

}  // namespace

PyObject* to_python(const Plan& plan) {
  PyObject* const steps = PyList_New(0);
  PyObject* const tunables = PyList_New(0);
  PyObject* scratch = nullptr;
  if (plan.scratch.bytes > 0) {
    scratch = to_python(plan.scratch);
  } else {
    Py_IncRef(scratch = Py_None);
  }
  bool is_made = steps != nullptr && tunables != nullptr && scratch != nullptr;
  for (const Step& step : plan.steps) is_made = is_made && append(steps, to_python(step));
  for (const Tunables::Entry& entry : plan.tuned) {
    is_made = is_made && append(tunables, Py_BuildValue("(sL)", entry.name.c_str(),
                                                        static_cast<long long>(entry.value)));
  }
  if (is_made) return Py_BuildValue("(sNNN)", plan.variant, steps, scratch, tunables);
  for (PyObject* const each : {steps, tunables, scratch}) Py_XDECREF(each);
  return nullptr;
}

}  // namespace diglot::torch_binding
