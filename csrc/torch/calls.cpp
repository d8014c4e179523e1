// What `diglot.graphs` asks at each call: what its arguments are, and which stream it is on.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstring>
#include <vector>

#include "torch/launcher.h"
#include "torch/python_tensors.h"

namespace {

using namespace diglot;
using namespace diglot::torch_binding;

constexpr int kDeepest = 32;  // lists within lists

enum Marker : uint8_t { kTensor, kTuple, kList, kDict, kFloat, kConstant };

// Walks through the arguments of a call. References are borrowed from the arguments.
class CallReader {
 public:
  std::vector<int64_t> what;         // of each object what decides which graph the call takes
  std::vector<int64_t> where;        // addresses and strides of tensors
  std::vector<PyObject*> tensors;    // in the order of torch.utils._pytree
  std::vector<PyObject*> constants;  // which are compared by Python

  CallReader() : records_(aoti_torch_grad_mode_is_enabled()) {
    what.reserve(64), where.reserve(64), tensors.reserve(16);
    what.push_back(records_);
  }

  // Returns false for an object that it does not know.
  bool read(PyObject* object, int depth) {
    if (is_plain_tensor(object)) return read_tensor(object);
    if (depth == kDeepest) return false;
    if (object->ob_type == &PyTuple_Type) {
      return read_items(kTuple, object, PyTuple_Size(object), PyTuple_GetItem, depth);
    }
    if (object->ob_type == &PyList_Type) {
      return read_items(kList, object, PyList_Size(object), PyList_GetItem, depth);
    }
    if (object->ob_type == &PyDict_Type) return read_dict(object, depth);
    if (object->ob_type == &PyFloat_Type) {  // by its bits: -0.0 is not 0.0, and a NaN is itself
      int64_t bits = 0;
      const double value = PyFloat_AsDouble(object);
      std::memcpy(&bits, &value, sizeof bits);
      what.insert(what.end(), {kFloat, bits});
      return true;
    }
    return read_constant(object);
  }

 private:
  bool read_tensor(PyObject* object) {
    dlpack::Tensor tensor;
    if (!describe(object, tensor)) return false;
    constexpr uint8_t kComplex = 5;  // such a tensor may be a conjugate, which PyTorch does not say
    if (tensor.dtype.code == kComplex) return false;
    const bool is_recorded = records_ && requires_grad(object);
    // Each takes a byte.
    what.push_back(kTensor | int64_t{tensor.dtype.code} << 8 | int64_t{tensor.dtype.bits} << 16 |
                   int64_t{tensor.rank} << 24 | int64_t{tensor.device_type} << 32 |
                   int64_t{static_cast<uint8_t>(tensor.device_index)} << 40 |
                   int64_t{is_recorded} << 48);
    what.insert(what.end(), tensor.sizes, tensor.sizes + tensor.rank);
    where.push_back(reinterpret_cast<int64_t>(tensor.data) +
                    static_cast<int64_t>(tensor.byte_offset));
    where.insert(where.end(), tensor.strides, tensor.strides + tensor.rank);
    tensors.push_back(object);
    return true;
  }

  template <typename Item>
  bool read_items(Marker marker, PyObject* object, Py_ssize_t count, Item item, int depth) {
    what.push_back(marker | int64_t{count} << 8);
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!read(item(object, i), depth + 1)) return false;
    }
    return true;
  }

  bool read_dict(PyObject* dict, int depth) {
    what.push_back(kDict | int64_t{PyDict_Size(dict)} << 8);
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(dict, &position, &key, &value)) {
      if (!read_constant(key) || !read(value, depth + 1)) return false;
    }
    return true;
  }

  bool read_constant(PyObject* object) {
    PyTypeObject* const type = object->ob_type;
    if (object != Py_None && type != &PyBool_Type && type != &PyLong_Type &&
        type != &PyUnicode_Type) {
      return false;
    }
    what.insert(what.end(), {kConstant, reinterpret_cast<int64_t>(type)});
    constants.push_back(object);
    return true;
  }

  bool records_;
};

PyObject* bytes_of(const std::vector<int64_t>& values) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()),
                                   static_cast<Py_ssize_t>(values.size() * sizeof(int64_t)));
}

// A tuple that takes the references. One that is null is a Python error.
PyObject* tuple_of(const std::vector<PyObject*>& items) {
  PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(items.size()));
  if (tuple == nullptr) throw PythonError{};
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i] == nullptr) throw PythonError{};
    PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), items[i]);
  }
  return tuple;
}

PyObject* tuple_of_borrowed(const std::vector<PyObject*>& items) {
  for (PyObject* const item : items) Py_IncRef(item);
  return tuple_of(items);
}

// read_call(args, kwargs) -> (what, where, tensors), or None
//
// `what` is a key. Calls with the same key lie in the same tree. Their tensors have the same
// dtypes, devices and shapes, and their other values are the same. The same gradients would be
// recorded. `where` is the same if tensors have the same addresses and strides. None: there is an
// object that only Python can read.
PyObject* read_call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 2, [&]() -> PyObject* {
    CallReader reader;
    if (!reader.read(arguments[0], 0) || !reader.read(arguments[1], 0)) Py_RETURN_NONE;
    PyObject* what = bytes_of(reader.what);
    if (!reader.constants.empty()) what = tuple_of({what, tuple_of_borrowed(reader.constants)});
    return tuple_of({what, bytes_of(reader.where), tuple_of_borrowed(reader.tensors)});
  });
}

// free_stream(device) -> the handle of the device's current stream; None while it is captured.
PyObject* free_stream(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 1, [&]() -> PyObject* {
    const int device = static_cast<int>(PythonReader(arguments).read<int64_t>());
    const DeviceGuard guard(device);
    cudaStream_t const stream = current_stream(device);
    cudaStreamCaptureStatus status;
    check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
    if (status != cudaStreamCaptureStatusNone) Py_RETURN_NONE;
    return PyLong_FromVoidPtr(stream);
  });
}

const bool registered = [] {
  python_functions().push_back({"read_call", read_call});
  python_functions().push_back({"free_stream", free_stream});
  return true;
}();

}  // namespace
