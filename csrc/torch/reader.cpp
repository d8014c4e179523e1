#include "torch/reader.h"

#include <algorithm>
#include <optional>
#include <utility>

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
    case ScalarType::Float8_e4m3fn: return DType::kFloat8E4M3;
    case ScalarType::Float8_e5m2: return DType::kFloat8E5M2;
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

// Names of methods that are called on tensors, made once. The module is never unloaded.
struct Names {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* get_device = PyUnicode_InternFromString("get_device");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* storage_offset = PyUnicode_InternFromString("storage_offset");
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

// PyTorch's function that describes a tensor in one call; null if it has none. Found once, when the
// module is imported.
decltype(dlpack::ExchangeApi::describe) describe_tensor = nullptr;

DType dtype_of(dlpack::DataType type) {
  switch (type.code << 8 | type.bits) {
    case dlpack::kBool << 8 | 8: return DType::kBool;
    case dlpack::kUInt << 8 | 8: return DType::kUInt8;
    case dlpack::kInt << 8 | 8: return DType::kInt8;
    case dlpack::kInt << 8 | 16: return DType::kInt16;
    case dlpack::kInt << 8 | 32: return DType::kInt32;
    case dlpack::kInt << 8 | 64: return DType::kInt64;
    case dlpack::kFloat << 8 | 16: return DType::kFloat16;
    case dlpack::kBFloat << 8 | 16: return DType::kBFloat16;
    case dlpack::kFloat << 8 | 32: return DType::kFloat32;
    case dlpack::kFloat << 8 | 64: return DType::kFloat64;
    case dlpack::kFloat8E4M3 << 8 | 8: return DType::kFloat8E4M3;
    case dlpack::kFloat8E5M2 << 8 | 8: return DType::kFloat8E5M2;
    default: throw std::invalid_argument("this element type has no CUDA kernel");
  }
}

bool find_description(PyObject* torch) {
  const Object type(PyObject_GetAttrString(torch, "Tensor"));
  PyObject* const capsule = PyObject_GetAttrString(type.get(), dlpack::kAttribute);
  if (capsule == nullptr) {
    PyErr_Clear();  // PyTorch 2.10
    return true;
  }
  const auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, dlpack::kCapsule));
  Py_DECREF(capsule);                 // the table is there for ever
  if (api == nullptr) PyErr_Clear();  // a capsule of another kind: attributes are read
  while (api != nullptr && api->major_version > dlpack::kMajorVersion) api = api->older;
  if (api != nullptr && api->major_version == dlpack::kMajorVersion) {
    describe_tensor = api->describe;
  }
  return true;
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

void set_numel(Operand& operand) {
  operand.numel = 1;
  for (int d = 0; d < operand.rank; ++d) operand.numel *= operand.sizes[d];
}

// PyTorch's rule: strides count only along dimensions of several elements, and in tensors that have
// elements.
bool is_contiguous(const Operand& operand, const int64_t* strides) {
  if (operand.numel == 0) return true;
  int64_t expected = 1;
  for (int d = operand.rank - 1; d >= 0; --d) {
    if (operand.sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= operand.sizes[d];
  }
  return true;
}

}  // namespace

CallTensor& CallOperands::add_tensor() {
  CallTensor& tensor = tensors[tensor_count];
  tensor.operand.number = tensor_count++;
  tensor.place = place++;
  return tensor;
}

bool describe(PyObject* tensor, dlpack::Tensor& description) {
  if (describe_tensor == nullptr) return false;
  if (describe_tensor(tensor, &description) == 0) return true;
  PyErr_Clear();
  return false;
}

bool find_dtypes() {
  constexpr std::pair<const char*, DType> kNames[] = {{"bfloat16", DType::kBFloat16},
                                                      {"float32", DType::kFloat32},
                                                      {"float16", DType::kFloat16},
                                                      {"float64", DType::kFloat64},
                                                      {"bool", DType::kBool},
                                                      {"uint8", DType::kUInt8},
                                                      {"int8", DType::kInt8},
                                                      {"int16", DType::kInt16},
                                                      {"int32", DType::kInt32},
                                                      {"int64", DType::kInt64},
                                                      {"float8_e4m3fn", DType::kFloat8E4M3},
                                                      {"float8_e5m2", DType::kFloat8E5M2}};
  PyObject* const torch = PyImport_ImportModule("torch");
  if (torch == nullptr) return false;
  for (const auto& [name, code] : kNames) {
    PyObject* const object = PyObject_GetAttrString(torch, name);  // kept for ever
    if (object == nullptr) break;
    known_dtypes.emplace_back(object, code);
  }
  const bool is_found = known_dtypes.size() == std::size(kNames) && find_description(torch);
  Py_DECREF(torch);
  return is_found;
}

// --- off a stack ---------------------------------------------------------------------------------

const Operand& StackReader::read_tensor(torch::stable::Tensor tensor) {
  CallTensor& entry = operands_->add_tensor();
  Operand& operand = entry.operand;
  operands_->set_address(entry, tensor.data_ptr());
  operand.dtype = dtype_of(tensor.scalar_type());
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
  set_numel(operand);
  entry.is_contiguous = tensor.is_contiguous();
  operands_->device = tensor.get_device_index();
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
  if (tensor.has_value()) return &read_tensor(std::move(*tensor));
  ++operands_->place;
  return nullptr;
}

template <>
TensorList StackReader::read<TensorList>() {
  // Taken off the stack, and freed here. The tensors live on, because the caller has them too.
  torch::stable::detail::to<std::vector<torch::stable::Tensor>>(*stack_++);
  ++operands_->place;
  return {};
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
int64_t StackReader::read<int64_t>() {
  return torch::stable::detail::to<int64_t>(*stack_++);
}

template <>
double StackReader::read<double>() {
  return torch::stable::detail::to<double>(*stack_++);
}

template <>
Real StackReader::read<Real>() {
  return {{operands_->add_number({read<double>(), 0})}};
}

template <>
Integer StackReader::read<Integer>() {
  return {{operands_->add_number({0, read<int64_t>()})}};
}

template <>
Number StackReader::read<Number>() {
  const double real = read<double>();
  return {operands_->add_number({real, read<int64_t>()})};
}

// --- off a Python call ---------------------------------------------------------------------------

namespace {

void read_description(CallOperands& operands, CallTensor& entry, PyObject* tensor) {
  Operand& operand = entry.operand;
  dlpack::Tensor described;
  if (describe_tensor(tensor, &described) != 0) throw PythonError{};
  operands.set_address(entry, static_cast<char*>(described.data) + described.byte_offset);
  if (operand.number == 0) {
    operands.device = described.device_type == dlpack::kCuda ? described.device_index : -1;
  }
  operand.dtype = dtype_of(described.dtype);
  operand.rank = described.rank;
  if (operand.rank > kMaxTensorRank) {
    throw std::invalid_argument("a tensor of too many dimensions");
  }
  std::copy_n(described.sizes, operand.rank, operand.sizes);
  set_numel(operand);
  entry.is_contiguous = is_contiguous(operand, described.strides);
  if (!entry.is_contiguous) std::copy_n(described.strides, operand.rank, operand.strides);
}

// For a tensor that PyTorch does not describe, or that has no memory.
void read_attributes(CallOperands& operands, CallTensor& entry, PyObject* tensor,
                     Alignment alignment) {
  Operand& operand = entry.operand;
  const Object dtype(PyObject_GetAttr(tensor, names().dtype));
  operand.dtype = dtype_of(dtype.get());
  if (alignment == Alignment::kNone) {
    operand.remainder = size_of(operand.dtype) % kAddressModulus;
  } else if (alignment == Alignment::kOfStorage) {
    const int64_t offset = call_for_integer(tensor, names().storage_offset);
    operand.remainder = offset * size_of(operand.dtype) % kAddressModulus;
  } else {
    const int64_t address = call_for_integer(tensor, names().data_ptr);
    operands.set_address(entry, reinterpret_cast<void*>(address));
    if (operand.number == 0) {
      operands.device = static_cast<int>(call_for_integer(tensor, names().get_device));
    }
  }
  const Object shape(PyObject_GetAttr(tensor, names().shape));
  operand.rank = read_integers(shape.get(), operand.sizes);
  set_numel(operand);
  const Object contiguous(PyObject_CallMethodObjArgs(tensor, names().is_contiguous, nullptr));
  entry.is_contiguous = contiguous.get() == Py_True;
  if (!entry.is_contiguous) {
    const Object stride(PyObject_CallMethodObjArgs(tensor, names().stride, nullptr));
    read_integers(stride.get(), operand.strides);
  }
}

}  // namespace

const Operand& PythonReader::read_tensor(PyObject* tensor) {
  CallTensor& entry = operands_->add_tensor();
  if (alignment_ != Alignment::kOfMemory || describe_tensor == nullptr) {
    read_attributes(*operands_, entry, tensor, alignment_);
  } else {
    read_description(*operands_, entry, tensor);
  }
  return entry.operand;
}

template <>
const Operand& PythonReader::read<const Operand&>() {
  return read_tensor(*arguments_++);
}

template <>
const Operand* PythonReader::read<const Operand*>() {
  PyObject* argument = *arguments_++;
  if (argument != Py_None) return &read_tensor(argument);
  ++operands_->place;
  return nullptr;
}

template <>
TensorList PythonReader::read<TensorList>() {
#if defined(DIGLOT_INTERPRETER)
  const Py_ssize_t count = alignment_ == Alignment::kOfMemory ? PyList_Size(*arguments_) : 0;
  if (count < 0) throw PythonError{};
  for (Py_ssize_t i = 0; i < count; ++i) {
    CallOperands operands;
    CallTensor tensor;
    void* address = nullptr;
    operands.tensors = &tensor, operands.addresses = &address;
    PythonReader reader(nullptr);
    reader.read_into(operands);
    reader.read_tensor(PyList_GetItem(*arguments_, i));
    tensor.place = operands_->place;
    operands_->listed.emplace_back(tensor, address);
  }
#endif
  ++arguments_;
  ++operands_->place;
  return {};
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
int64_t PythonReader::read<int64_t>() {
  // Wraps as integer arithmetic on tensors does.
  const auto value = static_cast<int64_t>(PyLong_AsUnsignedLongLongMask(*arguments_++));
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

template <>
double PythonReader::read<double>() {
  const double value = PyFloat_AsDouble(*arguments_++);
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

template <>
Real PythonReader::read<Real>() {
  return {{operands_->add_number({read<double>(), 0})}};
}

template <>
Integer PythonReader::read<Integer>() {
  return {{operands_->add_number({0, read<int64_t>()})}};
}

template <>
Number PythonReader::read<Number>() {
  if (!PyLong_Check(*arguments_)) return read<Real>();
  const double real = PyLong_AsDouble(*arguments_);
  if (real == -1 && PyErr_Occurred()) throw PythonError{};
  return {operands_->add_number({real, read<int64_t>()})};
}

}  // namespace diglot::torch_binding
