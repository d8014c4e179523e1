#include "torch/launcher.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstring>

#include "diglot/launch/named_device.h"
#include "torch/tunables.h"
#include "torch/tuple_reader.h"

// A CPU-only build of PyTorch lacks its CUDA half. A weak reference lets this library load there.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace diglot::torch_binding {

cudaStream_t current_stream(int device) {
  // The facade refuses such tensors, but operators can be called without it.
  if (device < 0) throw std::invalid_argument("a CUDA kernel takes CUDA tensors");
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    throw std::runtime_error("this build of PyTorch has no CUDA support");
  }
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

PyObject* raise_current_exception() {
  try {
    throw;
  } catch (const PythonError&) {
    // already set
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// --- keys ----------------------------------------------------------------------------------------

// Appends the first `tensors` tensors.
static void append_to(PlanKey& key, const CallOperands& operands, int tensors) {
  key.push_back(operands.device);
  for (int i = 0; i < tensors; ++i) {
    const CallTensor& tensor = operands.tensors[i];
    const Operand& operand = tensor.operand;
    // Each takes a byte.
    key.push_back(static_cast<int64_t>(operand.dtype) | int64_t{operand.rank} << 8 |
                  static_cast<int64_t>(operand.remainder) << 16 |
                  int64_t{tensor.is_contiguous} << 24 | int64_t{tensor.place} << 32);
    key.insert(key.end(), operand.sizes, operand.sizes + operand.rank);
    if (!tensor.is_contiguous) {
      key.insert(key.end(), operand.strides, operand.strides + operand.rank);
    }
  }
}

void append_to(PlanKey& key, std::string_view text) {
  key.push_back(static_cast<int64_t>(text.size()));
  for (std::size_t offset = 0; offset < text.size(); offset += sizeof(int64_t)) {
    int64_t word = 0;
    std::memcpy(&word, text.data() + offset, std::min(sizeof(word), text.size() - offset));
    key.push_back(word);
  }
}

void append_to(PlanKey& key, double value) {
  int64_t word = 0;
  std::memcpy(&word, &value, sizeof(word));
  key.push_back(word);
}

// --- calls ---------------------------------------------------------------------------------------

void CallBase::complete() {
  for (int i = 0; i < operands_.tensor_count; ++i) {
    if (operands_.tensors[i].is_contiguous) operands_.tensors[i].operand.set_contiguous_strides();
  }
}

std::shared_ptr<const KeptPlan> CallBase::kept_plan() {
  thread_local PlanKey key;
  key.clear();
  append_to(key, operands_, tensors());
  append_parameters_to(key);
  if (auto found = plans_.find(key)) return found;
  const PlanKey own = key;  // planning may run Python, and so other launches on this thread
  const auto generation = PlanCache::generation();
  return plans_.keep(own, plan(current_device()), generation);
}

namespace {

char* check_scratch(const CallTensor& scratch, void* address, const Scratch& needed) {
#if defined(DIGLOT_INTERPRETER)
  constexpr uintptr_t kAlignment = 16;
#else
  constexpr uintptr_t kAlignment = 256;
#endif
  const Operand& operand = scratch.operand;
  if (operand.dtype != DType::kUInt8 || operand.rank != 1 || !scratch.is_contiguous ||
      operand.numel < needed.bytes) {
    throw std::invalid_argument("scratch must be a contiguous uint8 tensor of one dimension and " +
                                std::to_string(needed.bytes) + " elements or more, not of " +
                                std::to_string(operand.numel));
  }
  if (reinterpret_cast<uintptr_t>(address) % kAlignment != 0) {
    throw std::invalid_argument("scratch must be aligned to " + std::to_string(kAlignment) +
                                " bytes");
  }
  return static_cast<char*>(address);
}

#if defined(DIGLOT_INTERPRETER)
// The memory of a call's tensors. The schema marks written tensors as Tensor(a!).
std::vector<interpreter::Range> ranges_of(const CallOperands& operands, std::string_view schema) {
  std::vector<interpreter::Range> ranges;
  const auto add = [&](const CallTensor& tensor, const void* address) {
    std::size_t position = schema.find("Tensor");
    for (int before = 0; before < tensor.place; ++before) {
      position = schema.find("Tensor", position + 1);
    }
    const bool is_writable = schema.substr(position, sizeof("Tensor(a!)")).find('!') != schema.npos;
    const Operand& operand = tensor.operand;
    int64_t elements = operand.numel > 0 ? 1 : 0;
    for (int d = 0; d < operand.rank && elements > 0; ++d) {
      elements += (operand.sizes[d] - 1) * operand.strides[d];
    }
    if (tensor.is_contiguous) elements = operand.numel;
    const auto* const begin = static_cast<const char*>(address);
    ranges.push_back({begin, begin + elements * size_of(operand.dtype), is_writable});
  };
  for (int i = 0; i < operands.tensor_count; ++i) add(operands.tensors[i], operands.addresses[i]);
  for (const auto& [tensor, address] : operands.listed) add(tensor, address);
  return ranges;
}
#endif

}  // namespace

bool CallBase::launch(const Plan& plan, cudaStream_t stream) const {
  char* scratch = nullptr;
  if (plan.scratch.bytes > 0) {
    if (scratch_ == nullptr) return false;
    scratch = check_scratch(*scratch_, operands_.address(*scratch_), plan.scratch);
  }
#if defined(DIGLOT_INTERPRETER)
  // Tensors are in the host's memory. A kernel may touch only these.
  const interpreter::Arguments scope(ranges_of(operands_, schema_));
#endif
  plan.launch({stream, operands_.addresses, operands_.numbers, scratch});
  return true;
}

// --- ways in -------------------------------------------------------------------------------------

std::vector<PythonFunction>& python_functions() {
  static std::vector<PythonFunction> functions;
  return functions;
}

const PythonFunction& find_launcher(std::string_view name) {
  for (const PythonFunction& function : python_functions()) {
    if (function.bind != nullptr && name == function.name) return function;
  }
  throw std::invalid_argument("there is no launcher " + std::string(name));
}

void check_count(Py_ssize_t expected, Py_ssize_t count) {
  if (count == expected) return;
  PyErr_Format(PyExc_TypeError, "expected %d arguments, got %d", static_cast<int>(expected),
               static_cast<int>(count));
  throw PythonError{};
}

namespace {

struct Launched {
  std::shared_ptr<const KeptPlan> kept_plan;
  bool is_launched;
};

Launched launch_on_current_stream(CallBase& call) {
#if defined(DIGLOT_INTERPRETER)
  cudaStream_t const stream = nullptr;
#else
  const DeviceGuard guard(call.device());
  cudaStream_t const stream = current_stream(call.device());
#endif
  auto kept_plan = call.kept_plan();
  const bool is_launched = call.launch(kept_plan->plan, stream);
  return {std::move(kept_plan), is_launched};
}

Launched launch_without_gil(CallBase& call) {
  const WithoutGil gil;
  return launch_on_current_stream(call);
}

}  // namespace

PyObject* launch_from_python(CallBase& call) {
  const Launched launched = launch_without_gil(call);
  return launched.is_launched ? launched.kept_plan->variant()
                              : to_python(launched.kept_plan->plan.scratch);
}

void launch_from_stack(CallBase& call) {
  const Launched launched = launch_on_current_stream(call);
  if (!launched.is_launched) {
    throw std::invalid_argument("this call needs " +
                                std::to_string(launched.kept_plan->plan.scratch.bytes) +
                                " bytes of scratch");
  }
}

PyObject* plan_from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    constexpr unsigned long kIsTuple = 1UL << 26;  // Py_TPFLAGS_TUPLE_SUBCLASS
    const bool is_named = count > 1 && arguments[1] != Py_None;
    if (count < 2 || (is_named && (PyType_GetFlags(arguments[1]->ob_type) & kIsTuple) == 0)) {
      PyErr_SetString(PyExc_TypeError,
                      "plan takes a launcher's name, a device's facts or None, and arguments");
      return nullptr;
    }
    const PythonFunction& launcher =
        find_launcher(PythonReader(arguments).read<std::string_view>());
    const auto call = launcher.bind_planned(arguments + 2, count - 2, Alignment::kOfStorage);
    if (!is_named) return to_python(call->plan(current_device()));
    TupleReader facts(arguments[1]);
    const int architecture = static_cast<int>(facts.integer());
    const int multiprocessors = static_cast<int>(facts.integer());
    const int shared_bytes = static_cast<int>(facts.integer());
    const bool has_clusters = facts.boolean();
    auto tunables = tunables_of(-1);
    if (facts.size() > 5) {
      PyObject* const pairs = facts.tuple();
      tunables = read_tunables(pairs, facts.text());
    }
    const NamedDevice device(architecture, multiprocessors, shared_bytes, has_clusters,
                             std::move(tunables));
    return to_python(call->plan(device));
  } catch (...) {
    return raise_current_exception();
  }
}

PyObject* scratch_from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    if (count < 1) {
      PyErr_SetString(PyExc_TypeError, "scratch_of takes a launcher's name and arguments");
      return nullptr;
    }
    const PythonFunction& launcher =
        find_launcher(PythonReader(arguments).read<std::string_view>());
    Planner planner(current_device());
    for (const Alignment alignment : {Alignment::kOfStorage, Alignment::kNone}) {
      const auto call = launcher.bind_planned(arguments + 1, count - 1, alignment);
      planner.need(call->plan(planner.device).scratch);
    }
    const Scratch& scratch = planner.plan.scratch;
    if (scratch.bytes > 0) return to_python(scratch);
    Py_RETURN_NONE;
  } catch (...) {
    return raise_current_exception();
  }
}

bool add_schemas(PyObject* module) {
  PyObject* const schemas = PyDict_New();
  if (schemas == nullptr) return false;
  for (const PythonFunction& function : python_functions()) {
    if (function.bind == nullptr) continue;
    PyObject* const text = PyUnicode_FromString(std::string(function.schema).c_str());
    const bool is_added =
        text != nullptr && PyDict_SetItemString(schemas, function.name, text) == 0;
    Py_XDECREF(text);
    if (!is_added) {
      Py_DECREF(schemas);
      return false;
    }
  }
  const bool is_added = PyModule_AddObjectRef(module, "schemas", schemas) == 0;
  Py_DECREF(schemas);
  return is_added;
}

}  // namespace diglot::torch_binding
