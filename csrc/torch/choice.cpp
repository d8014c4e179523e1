#include "torch/choice.h"

#include "diglot/launch/choice.h"
#include "torch/launcher.h"
#include "torch/tunables.h"
#include "torch/with_gil.h"

namespace diglot::torch_binding {

namespace {

// Kept for ever: launches outlive the module's objects.
PyObject* function = nullptr;

// Takes over the items' references. Returns null after an error, and if an item is null.
template <typename Items, typename Make>
PyObject* tuple_of(const Items& items, Make make) {
  PyObject* const list = PyList_New(0);
  bool is_made = list != nullptr;
  for (const auto& each : items) {
    PyObject* const item = is_made ? make(each) : nullptr;
    is_made = item != nullptr && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
  }
  PyObject* const tuple = is_made ? PyList_AsTuple(list) : nullptr;
  Py_XDECREF(list);
  return tuple;
}

// In the order of DType.
constexpr const char* kDTypeNames[] = {"bool",    "uint8",   "int8",          "int16",
                                       "int32",   "int64",   "float16",       "bfloat16",
                                       "float32", "float64", "float8_e4m3fn", "float8_e5m2"};

PyObject* to_python(const Problem& problem) {
  PyObject* const dtypes = tuple_of(problem.operands, [](const Operand* operand) {
    return PyUnicode_InternFromString(
        operand == nullptr ? "none" : kDTypeNames[static_cast<int>(operand->dtype)]);
  });
  PyObject* const shape =
      tuple_of(problem.shape, [](int64_t size) { return PyLong_FromLong(size); });
  PyObject* result = nullptr;
  if (dtypes != nullptr && shape != nullptr) {
    const std::string op(problem.name.op), launcher(problem.name.launcher);
    result = Py_BuildValue("(sssOsO)", op.c_str(), launcher.c_str(), problem.gpu.c_str(), dtypes,
                           problem.layout.c_str(), shape);
  }
  Py_XDECREF(dtypes);
  Py_XDECREF(shape);
  return result;
}

std::shared_ptr<const ChosenNumbers> choose(const Problem& problem) {
  if (Py_IsInitialized() == 0) return nullptr;  // Python has ended
  const WithGil gil;
  PyObject* const arguments = to_python(problem);
  PyObject* const answer =
      arguments == nullptr ? nullptr : PyObject_CallObject(function, arguments);
  Py_XDECREF(arguments);
  std::shared_ptr<const ChosenNumbers> chosen;
  if (answer != nullptr && answer != Py_None) {
    try {
      chosen = std::make_shared<const ChosenNumbers>(read_numbers(answer));
    } catch (...) {
      raise_current_exception();
    }
  }
  Py_XDECREF(answer);
  if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) {
    PyErr_Clear();
    PyErr_SetInterrupt();  // Python raises it again when it is back in control
  } else if (PyErr_Occurred()) {
    PyErr_WriteUnraisable(function);
  }
  return chosen;
}

}  // namespace

PyObject* set_chooser_from_python(PyObject*, PyObject* chosen) {
  Py_IncRef(chosen);
  function = chosen;
  chooser().store(&choose, std::memory_order_release);
  Py_RETURN_NONE;
}

}  // namespace diglot::torch_binding
