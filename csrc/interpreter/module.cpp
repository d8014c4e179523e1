// The Python module diglot._interpreter: every launcher as a function, for tensors on the CPU,
// and those of the pipeline.
#include "torch/choice.h"
#include "torch/launcher.h"
#include "torch/tunables.h"

namespace {

PyMethodDef definition(const char* name,
                       PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL, nullptr};
}

}  // namespace

PyMODINIT_FUNC PyInit__interpreter() {
  using namespace diglot::torch_binding;
  if (!find_dtypes()) return nullptr;
  static std::vector<PyMethodDef> methods;
  for (const PythonFunction& function : python_functions()) {
    methods.push_back(definition(function.name, function.function));
  }
  methods.push_back(definition("plan", plan_from_python));
  methods.push_back(definition("scratch_of", scratch_from_python));
  methods.push_back(definition("set_tunables", set_tunables_from_python));
  methods.push_back({"set_chooser", set_chooser_from_python, METH_O, nullptr});
  methods.push_back({nullptr, nullptr, 0, nullptr});

  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_interpreter", nullptr, -1, methods.data()};
  PyObject* const result = PyModule_Create(&module);
  return result != nullptr && add_schemas(result) && add_tunable_names(result) ? result : nullptr;
}
