// One launcher, two ways in: as an operator of torch.library (what compiled graphs call) and as a
// function of the Python module (what eager code calls, without the dispatcher's cost).
//
//   void gelu_forward(Planner& planner, const Operand& input, std::string_view approximate,
//                     const Operand& out);
//   DIGLOT_LAUNCHER(gelu_forward,
//                   "(Tensor input, str approximate, Tensor(a!) out, Tensor(z!)? scratch) -> ()")
//
// The function plans (plan.h). The key of its plan is the device, the tensors' dtypes, sizes,
// strides and alignment, and the plain parameters. These are strings, bool, int64_t ("int" in the
// schema) and double ("float"). No plan depends on Real ("float"), Integer ("int") and Number
// ("float x, int x_integer", one argument in Python); a launch passes their values.
//
// Every schema ends with scratch. A call from Python returns the variant's name. If its plan needs
// scratch and it has none, it launches nothing and returns the requirement: (bytes, zeroed,
// lifetime). A launcher can be bound to its arguments once, and then called with other
// operands (csrc/torch/pipeline.cpp).
//
// A launcher runs with its output's device current. Only this folder includes PyTorch's headers.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>

#include "diglot/launch/plan.h"
#include "torch/gil.h"
#include "torch/plans.h"
#include "torch/reader.h"

namespace diglot {
namespace torch_binding {

// PyTorch's current stream on `device`.
cudaStream_t current_stream(int device);

#if !defined(DIGLOT_INTERPRETER)
// Makes `device` current for a scope. PyTorch restores the previous device, because only it knows
// whether that one has a context yet. The CUDA runtime would make one.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    int current = 0;
    check(cudaGetDevice(&current), "cudaGetDevice");
    if (current != device) guard_.emplace(device);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};
#endif

PyObject* raise_current_exception();

// The op of a file of launchers: "softmax" of "csrc/ops/softmax.cu".
constexpr std::string_view stem_of(std::string_view file) {
  const std::size_t slash = file.rfind('/');
  if (slash != file.npos) file.remove_prefix(slash + 1);
  return file.substr(0, file.find('.'));
}

void append_to(PlanKey& key, std::string_view text);
inline void append_to(PlanKey& key, int64_t value) { key.push_back(value); }
inline void append_to(PlanKey& key, bool value) { key.push_back(value); }
void append_to(PlanKey& key, double value);
// No plan depends on numbers or lists. `CallOperands` appends all tensors.
inline void append_to(PlanKey&, const Operand&) {}
inline void append_to(PlanKey&, const Operand*) {}
inline void append_to(PlanKey&, TensorList) {}
inline void append_to(PlanKey&, const Number&) {}

template <typename Parameter>
constexpr bool kIsTensor =
    std::is_same_v<Parameter, const Operand&> || std::is_same_v<Parameter, const Operand*>;

// A call's arguments. They are read once; later calls may change its tensors.
class CallBase {
 public:
  virtual ~CallBase() = default;
  CallBase(const CallBase&) = delete;
  CallBase& operator=(const CallBase&) = delete;

  // The tensors in order, without absent ones and without scratch.
  int tensors() const { return operands_.tensor_count - (scratch_ != nullptr); }
  Operand& operand(int i) { return operands_.tensors[i].operand; }
  void set_address(int i, void* address) { operands_.set_address(operands_.tensors[i], address); }
  int device() const { return operands_.device; }

  // The plan on the current device. This needs nothing of Python.
  std::shared_ptr<const KeptPlan> kept_plan();
  // A new plan, on any device.
  virtual Plan plan(const Device& device) = 0;
  // Launches a plan. Returns false, and launches nothing, if the plan lacks scratch that it needs.
  bool launch(const Plan& plan, cudaStream_t stream) const;

 protected:
  CallBase(const LauncherName& name, std::string_view schema, PlanCache& plans)
      : name_(name), schema_(schema), plans_(plans) {}
  virtual void append_parameters_to(PlanKey& key) const = 0;
  // Sets the strides of contiguous tensors, which are not read.
  void complete();

  CallOperands operands_;
  const CallTensor* scratch_ = nullptr;
  const LauncherName& name_;

 private:
  [[maybe_unused]] std::string_view schema_;
  PlanCache& plans_;
};

template <typename... Parameters>
class Call final : public CallBase {
 public:
  using Launcher = void (*)(Planner&, Parameters...);

  // Operands may refer to objects that the reader holds.
  template <typename Reader>
  Call(Launcher launcher, const LauncherName& name, std::string_view schema, PlanCache& plans,
       Reader& reader, bool has_scratch)
      : CallBase(name, schema, plans), launcher_(launcher) {
    operands_.tensors = tensors_, operands_.addresses = addresses_, operands_.numbers = numbers_;
    reader.read_into(operands_);
    // Braces order the reads from left to right.
    arguments_.emplace(std::tuple<Parameters...>{reader.template read<Parameters>()...});
    if (!has_scratch) return;
    const int before = operands_.tensor_count;
    if (reader.template read<const Operand*>() != nullptr) scratch_ = &tensors_[before];
  }

  Plan plan(const Device& device) override {
    complete();
    Planner planner(device, name_);
    std::apply([&](const auto&... each) { launcher_(planner, each...); }, *arguments_);
    return std::move(planner.plan);
  }

 private:
  static constexpr int kTensors = 1 + (0 + ... + kIsTensor<Parameters>);  // with scratch

  void append_parameters_to(PlanKey& key) const override {
    std::apply([&](const auto&... each) { (append_to(key, each), ...); }, *arguments_);
  }

  Launcher launcher_;
  CallTensor tensors_[kTensors];
  void* addresses_[kTensors];
  NumberValue numbers_[sizeof...(Parameters)];
  std::optional<std::tuple<Parameters...>> arguments_;
};

// A function of the Python module. A launcher's function can also bind and plan its call.
struct PythonFunction {
  const char* name;
  PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t);
  std::string_view schema = {};
  // Binds the arguments of a Python call, which must outlive the result.
  std::unique_ptr<CallBase> (*bind)(PyObject* const*, Py_ssize_t) = nullptr;
  // The same without scratch.
  std::unique_ptr<CallBase> (*bind_planned)(PyObject* const*, Py_ssize_t, Alignment) = nullptr;
};
std::vector<PythonFunction>& python_functions();
// The launcher with this name. Throws std::invalid_argument if the name is unknown.
const PythonFunction& find_launcher(std::string_view name);

void check_count(Py_ssize_t expected, Py_ssize_t count);
// Calls the body of a Python function, and turns its exceptions into Python's.
template <typename Body>
PyObject* returned(Py_ssize_t count, Py_ssize_t expected, const Body& body) {
  try {
    check_count(expected, count);
    return body();
  } catch (const std::system_error& error) {
    PyObject* const arguments = Py_BuildValue("(is)", error.code().value(), error.what());
    if (arguments == nullptr) return nullptr;
    PyErr_SetObject(PyExc_OSError, arguments);
    Py_DECREF(arguments);
    return nullptr;
  } catch (...) {
    return raise_current_exception();
  }
}
// Launches a call, and returns its result for Python.
PyObject* launch_from_python(CallBase& call);
void launch_from_stack(CallBase& call);

// plan(name, device, *arguments)
PyObject* plan_from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count);
// scratch_of(name, *arguments): the scratch that the call needs on the current device, wherever its
// tensors' memory begins. A compiled graph runs with other addresses than it was traced with.
PyObject* scratch_from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count);
// Adds `schemas`, which both modules have beside the launchers. False after an error.
bool add_schemas(PyObject* module);

template <auto kLauncher>
struct Entry;
template <typename... Parameters, void (*kLauncher)(Planner&, Parameters...)>
struct Entry<kLauncher> {
  inline static LauncherName name;
  inline static std::string_view schema;

  static void from_stack(StableIValue* stack, uint64_t, uint64_t) {
    StackReader reader(stack);
    Bound call(kLauncher, name, schema, plans(), reader, true);
    launch_from_stack(call);
  }
  static PyObject* from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    try {
      check_count(kCount, count);
      PythonReader reader(arguments);
      Bound call(kLauncher, name, schema, plans(), reader, true);
      return launch_from_python(call);
    } catch (...) {
      return raise_current_exception();
    }
  }
  static std::unique_ptr<CallBase> bind(PyObject* const* arguments, Py_ssize_t count) {
    check_count(kCount, count);
    PythonReader reader(arguments);
    return std::make_unique<Bound>(kLauncher, name, schema, plans(), reader, true);
  }
  static std::unique_ptr<CallBase> bind_planned(PyObject* const* arguments, Py_ssize_t count,
                                                Alignment alignment) {
    check_count(kCount - 1, count);
    PythonReader reader(arguments, alignment);
    return std::make_unique<Bound>(kLauncher, name, schema, plans(), reader, false);
  }

 private:
  using Bound = Call<Parameters...>;
  static constexpr Py_ssize_t kCount = sizeof...(Parameters) + 1;

  // Never destroyed: launches may follow static destruction.
  static PlanCache& plans() {
    static PlanCache& instance = *new PlanCache;
    return instance;
  }
};

}  // namespace torch_binding
}  // namespace diglot

#if defined(DIGLOT_INTERPRETER)
// Compiled graphs do not see into the interpreter, so its launchers have no operators.
#define DIGLOT_OPERATOR(NAME, SCHEMA)
#else
#define DIGLOT_OPERATOR(NAME, SCHEMA)                                    \
  STABLE_TORCH_LIBRARY_FRAGMENT(diglot_cuda, m) { m.def(#NAME SCHEMA); } \
  STABLE_TORCH_LIBRARY_IMPL(diglot_cuda, CUDA, m) {                      \
    m.impl(#NAME, &diglot::torch_binding::Entry<NAME>::from_stack);      \
  }
#endif

#define DIGLOT_LAUNCHER(NAME, SCHEMA)                                              \
  DIGLOT_OPERATOR(NAME, SCHEMA)                                                    \
  static const bool NAME##_registered = [] {                                       \
    using Entry = diglot::torch_binding::Entry<NAME>;                              \
    Entry::name = {diglot::torch_binding::stem_of(__FILE__), #NAME};               \
    Entry::schema = SCHEMA;                                                        \
    diglot::torch_binding::python_functions().push_back(                           \
        {#NAME, &Entry::from_python, SCHEMA, &Entry::bind, &Entry::bind_planned}); \
    return true;                                                                   \
  }();
