#include "torch/python_tensors.h"

#include "torch/reader.h"

namespace diglot::torch_binding {

namespace {

// Kept for ever.
PyObject* plain_tensor = nullptr;
PyObject* parameter = nullptr;
PyObject* name_of_requires_grad = nullptr;

// A new reference; null, with a Python error set, if there is no such object.
PyObject* find(const char* module, const char* name) {
  PyObject* const found = PyImport_ImportModule(module);
  if (found == nullptr) return nullptr;
  PyObject* const object = PyObject_GetAttrString(found, name);
  Py_DECREF(found);
  return object;
}

}  // namespace

bool find_tensor_types() {
  plain_tensor = find("torch", "Tensor");
  if (plain_tensor == nullptr) return false;
  parameter = find("torch.nn", "Parameter");
  if (parameter == nullptr) return false;
  name_of_requires_grad = PyUnicode_InternFromString("requires_grad");
  return name_of_requires_grad != nullptr;
}

bool is_plain_tensor(PyObject* object) {
  auto* const type = reinterpret_cast<PyObject*>(object->ob_type);
  return type == plain_tensor || type == parameter;
}

bool requires_grad(PyObject* tensor) {
  PyObject* const found = PyObject_GetAttr(tensor, name_of_requires_grad);
  if (found == nullptr) throw PythonError{};
  Py_DECREF(found);
  return found == Py_True;
}

}  // namespace diglot::torch_binding
