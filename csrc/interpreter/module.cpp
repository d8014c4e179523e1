// The Python module diglot._interpreter: every launcher as a function, for tensors on the CPU,
// and those of the pipeline.
#include "torch/launcher.h"

namespace {

using diglot::torch_binding::raise_current_exception;

PyObject* last_variant(PyObject*, PyObject*) {
  return PyUnicode_FromString(diglot::last_variant());
}

}  // namespace

PyMODINIT_FUNC PyInit__interpreter() {
  if (!diglot::torch_binding::find_dtypes()) return nullptr;
  static std::vector<PyMethodDef> methods;
  for (const auto& [name, function, bind] : diglot::torch_binding::python_functions()) {
    static_cast<void>(bind);
    methods.push_back({name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
                       METH_FASTCALL, nullptr});
  }
  methods.push_back({"last_variant", last_variant, METH_NOARGS, nullptr});
  methods.push_back({nullptr, nullptr, 0, nullptr});

  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_interpreter", nullptr, -1, methods.data()};
  return PyModule_Create(&module);
}
