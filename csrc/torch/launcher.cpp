#include "torch/launcher.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

// PyTorch's CUDA half is absent from a CPU-only build of it. A weak reference lets this library
// load there all the same.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace diglot::torch_binding {

namespace {

using torch::headeronly::ScalarType;

DType dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Bool: return DType::kBool;
    case ScalarType::Byte: return DType::kUInt8;
    case ScalarType::Char: return DType::kInt8;
    case ScalarType::Short: return DType::kInt16;
    case ScalarType::Int: return DType::kInt32;
    case ScalarType::Long: return DType::kInt64;
    case ScalarType::Half: return DType::kFloat16;
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::Double: return DType::kFloat64;
    default: throw std::invalid_argument("this element type has no CUDA kernel");
  }
}

// Owns one reference.
class Object {
 public:
  explicit Object(PyObject* object) : object_(object) {
    if (object == nullptr) throw PythonError{};
  }
  ~Object() { Py_DECREF(object_); }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

// Names of the methods called on tensors, made once. The module is never unloaded.
struct Names {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* get_device = PyUnicode_InternFromString("get_device");
  PyObject* numel = PyUnicode_InternFromString("numel");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* stride = PyUnicode_InternFromString("stride");
};
const Names& names() {
  static const Names instance;
  return instance;
}

int64_t call_for_integer(PyObject* tensor, PyObject* method) {
  const Object result(PyObject_CallMethodObjArgs(tensor, method, nullptr));
  const int64_t value = PyLong_AsLongLong(result.get());
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

// torch.dtype objects are singletons, so identity decides. Found once, when the module is imported.
std::vector<std::pair<PyObject*, DType>> known_dtypes;

DType dtype_of(PyObject* dtype) {
  for (const auto& [object, code] : known_dtypes) {
    if (object == dtype) return code;
  }
  throw std::invalid_argument("this element type has no CUDA kernel");
}

int read_integers(PyObject* tuple, int64_t* values) {
  const Py_ssize_t count = PyTuple_Size(tuple);
  if (count < 0) throw PythonError{};
  if (count > kMaxTensorRank) throw std::invalid_argument("a tensor of too many dimensions");
  for (Py_ssize_t i = 0; i < count; ++i) {
    values[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    if (values[i] == -1 && PyErr_Occurred()) throw PythonError{};
  }
  return static_cast<int>(count);
}

}  // namespace

cudaStream_t current_stream(int device) {
  // The facade refuses such tensors; operators, which anybody can call, come here without it.
  if (device < 0) throw std::invalid_argument("a CUDA kernel takes CUDA tensors");
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    throw std::runtime_error("this build of PyTorch has no CUDA support");
  }
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

PyObject* to_python(const Scratch& scratch) {
  return Py_BuildValue("(LLs)", static_cast<long long>(scratch.bytes),
                       static_cast<long long>(scratch.zeroed),
                       scratch.lifetime == Lifetime::kCall ? "call" : "stream");
}

bool find_dtypes() {
  constexpr std::pair<const char*, DType> kNames[] = {
      {"bfloat16", DType::kBFloat16}, {"float32", DType::kFloat32}, {"float16", DType::kFloat16},
      {"float64", DType::kFloat64},   {"bool", DType::kBool},       {"uint8", DType::kUInt8},
      {"int8", DType::kInt8},         {"int16", DType::kInt16},     {"int32", DType::kInt32},
      {"int64", DType::kInt64}};
  PyObject* const torch = PyImport_ImportModule("torch");
  if (torch == nullptr) return false;
  for (const auto& [name, code] : kNames) {
    PyObject* const object = PyObject_GetAttrString(torch, name);  // kept for ever
    if (object == nullptr) break;
    known_dtypes.emplace_back(object, code);
  }
  Py_DECREF(torch);
  return known_dtypes.size() == std::size(kNames);
}

std::vector<PythonFunction>& python_functions() {
  static std::vector<PythonFunction> functions;
  return functions;
}

PyObject* raise_current_exception() {
  try {
    throw;
  } catch (const PythonError&) {
    // set already
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

const Operand& StackReader::read_tensor(torch::stable::Tensor tensor) {
  Operand& operand = operands_.emplace_back();
  operand.data = tensor.data_ptr();
  operand.dtype = dtype_of(tensor.scalar_type());
  operand.device = tensor.get_device_index();
  operand.numel = tensor.numel();
  operand.rank = static_cast<int>(tensor.dim());
  if (operand.rank > kMaxTensorRank) {
    throw std::invalid_argument("a tensor of too many dimensions");
  }
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (int d = 0; d < operand.rank; ++d) {
    operand.sizes[d] = sizes[d];
    operand.strides[d] = strides[d];
  }
  device_ = operand.device;
  tensors_.push_back(std::move(tensor));  // alive until the launcher returns
  return operand;
}

template <>
const Operand& StackReader::read<const Operand&>() {
  return read_tensor(torch::stable::detail::to<torch::stable::Tensor>(*stack_++));
}

template <>
const Operand* StackReader::read<const Operand*>() {
  auto tensor = torch::stable::detail::to<std::optional<torch::stable::Tensor>>(*stack_++);
  return tensor.has_value() ? &read_tensor(std::move(*tensor)) : nullptr;
}

template <>
std::string_view StackReader::read<std::string_view>() {
  return strings_.emplace_back(torch::stable::detail::to<std::string>(*stack_++));
}

template <>
bool StackReader::read<bool>() {
  return torch::stable::detail::to<bool>(*stack_++);
}

template <>
TensorList StackReader::read<TensorList>() {
  // Taken off the stack to be freed. The tensors live on: the caller has them, too.
  torch::stable::detail::to<std::vector<torch::stable::Tensor>>(*stack_++);
  return {};
}

template <>
Number StackReader::read<Number>() {
  const double real = torch::stable::detail::to<double>(*stack_++);
  const int64_t integer = torch::stable::detail::to<int64_t>(*stack_++);
  return {real, integer};
}

template <>
Dim StackReader::read<Dim>() {
  return {read<Number>().integer};
}

const Operand& PythonReader::read_tensor(PyObject* tensor) {
  if (count_ == kMaxTensors) throw std::invalid_argument("a launcher of too many tensors");
  Operand& operand = operands_[count_];
  operand.data = reinterpret_cast<void*>(call_for_integer(tensor, names().data_ptr));
  // All tensors are on one device, as the caller has checked.
  if (count_ == 0) device_ = static_cast<int>(call_for_integer(tensor, names().get_device));
  operand.device = device_;
  operand.numel = call_for_integer(tensor, names().numel);
  const Object dtype(PyObject_GetAttr(tensor, names().dtype));
  operand.dtype = dtype_of(dtype.get());
  slots_[count_] = slot_++;
  tensors_[count_++] = tensor;  // borrowed: the caller's arguments outlive the call
  return operand;
}

void PythonReader::describe() {
  for (int i = 0; i < count_; ++i) {
    Operand& operand = operands_[i];
    const Object shape(PyObject_GetAttr(tensors_[i], names().shape));
    const Object stride(PyObject_CallMethodObjArgs(tensors_[i], names().stride, nullptr));
    operand.rank = read_integers(shape.get(), operand.sizes);
    read_integers(stride.get(), operand.strides);
  }
#if defined(DIGLOT_INTERPRETER)
  for (const auto& [list, slot] : lists_) {
    const Py_ssize_t count = PyList_Size(list);
    if (count < 0) throw PythonError{};
    for (Py_ssize_t i = 0; i < count; ++i) {
      PythonReader reader(nullptr);
      reader.read_tensor(PyList_GetItem(list, i));
      reader.describe();
      listed_.emplace_back(reader.operands_[0], slot);
    }
  }
#endif
}

#if defined(DIGLOT_INTERPRETER)
std::vector<interpreter::Range> PythonReader::ranges(std::string_view schema) const {
  std::vector<interpreter::Range> ranges;
  const auto add = [&](const Operand& operand, int slot) {
    std::size_t at = schema.find("Tensor");
    for (int before = 0; before < slot; ++before) at = schema.find("Tensor", at + 1);
    const bool is_writable = schema.substr(at, sizeof("Tensor(a!)")).find('!') != schema.npos;
    int64_t elements = operand.numel > 0 ? 1 : 0;
    for (int d = 0; d < operand.rank && elements > 0; ++d) {
      elements += (operand.sizes[d] - 1) * operand.strides[d];
    }
    const char* const begin = operand.as<const char>();
    ranges.push_back({begin, begin + elements * size_of(operand.dtype), is_writable});
  };
  for (int i = 0; i < count_; ++i) add(operands_[i], slots_[i]);
  for (const auto& [operand, slot] : listed_) add(operand, slot);
  return ranges;
}
#endif

template <>
const Operand& PythonReader::read<const Operand&>() {
  return read_tensor(*arguments_++);
}

template <>
const Operand* PythonReader::read<const Operand*>() {
  PyObject* argument = *arguments_++;
  if (argument != Py_None) return &read_tensor(argument);
  ++slot_;
  return nullptr;
}

template <>
std::string_view PythonReader::read<std::string_view>() {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(*arguments_++, &size);
  if (text == nullptr) throw PythonError{};
  return {text, static_cast<size_t>(size)};
}

template <>
bool PythonReader::read<bool>() {
  return *arguments_++ == Py_True;  // contracts pass no other true object
}

template <>
TensorList PythonReader::read<TensorList>() {
#if defined(DIGLOT_INTERPRETER)
  lists_.emplace_back(*arguments_, slot_);
#endif
  ++arguments_;
  ++slot_;
  return {};
}

template <>
Number PythonReader::read<Number>() {
  PyObject* argument = *arguments_++;
  Number number;
  if (PyLong_Check(argument)) {
    // Wraps as integer arithmetic on tensors does.
    number.integer = static_cast<int64_t>(PyLong_AsUnsignedLongLongMask(argument));
    number.real = PyLong_AsDouble(argument);
  } else {
    number.real = PyFloat_AsDouble(argument);
  }
  if (PyErr_Occurred()) throw PythonError{};
  return number;
}

template <>
Dim PythonReader::read<Dim>() {
  return {read<Number>().integer};
}

}  // namespace diglot::torch_binding
