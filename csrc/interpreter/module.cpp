// The Python module diglot._interpreter: every launcher as a function, for tensors on the CPU.
#include "interpreter/interpreter.h"
#include "torch/launcher.h"

namespace {

using diglot::interpreter::options;
using diglot::torch_binding::raise_current_exception;

PyObject* last_variant(PyObject*, PyObject*) {
  return PyUnicode_FromString(diglot::last_variant());
}

// configure(seed, finds_races, os_threads): see interpreter::Options. Returns what was set before.
PyObject* configure(PyObject*, PyObject* arguments) {
  unsigned long long seed = 0;
  int finds_races = 0;
  unsigned os_threads = 0;
  if (!PyArg_ParseTuple(arguments, "KpI", &seed, &finds_races, &os_threads)) return nullptr;
  const auto before = options();
  options() = {seed, finds_races != 0, os_threads};
  return Py_BuildValue("(KOI)", static_cast<unsigned long long>(before.seed),
                       before.finds_races ? Py_True : Py_False, before.os_threads);
}

}  // namespace

PyMODINIT_FUNC PyInit__interpreter() {
  if (!diglot::torch_binding::find_dtypes()) return nullptr;
  static std::vector<PyMethodDef> methods;
  for (const auto& [name, function] : diglot::torch_binding::python_functions()) {
    methods.push_back({name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
                       METH_FASTCALL, nullptr});
  }
  methods.push_back({"last_variant", last_variant, METH_NOARGS, nullptr});
  methods.push_back({"configure", configure, METH_VARARGS, nullptr});
  methods.push_back({nullptr, nullptr, 0, nullptr});

  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_interpreter", nullptr, -1, methods.data()};
  return PyModule_Create(&module);
}
