// The Python module diglot._C: every launcher as a function, and facts about the build.
#include "torch/choice.h"
#include "torch/launcher.h"
#include "torch/python_tensors.h"
#include "torch/tunables.h"

#ifndef DIGLOT_ARCHITECTURES
#define DIGLOT_ARCHITECTURES ""
#endif
#ifndef DIGLOT_BUILT_WITH_TORCH
#define DIGLOT_BUILT_WITH_TORCH ""
#endif

namespace diglot {
// Defined beside a kernel, where the device compiler sees it. Returns cudaSuccess if this library
// holds code that the current device can run.
cudaError_t probe_device();
}  // namespace diglot

namespace {

using diglot::torch_binding::raise_current_exception;

// check_device(index) raises RuntimeError, with CUDA's own words, if kernels cannot run there.
PyObject* check_device(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 1) {
    PyErr_SetString(PyExc_TypeError, "check_device takes a device index");
    return nullptr;
  }
  const long device = PyLong_AsLong(arguments[0]);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  try {
    int driver = 0;
    diglot::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    diglot::torch_binding::DeviceGuard guard(static_cast<int>(device));
    diglot::check(diglot::probe_device(), "loading a kernel");
  } catch (...) {
    return raise_current_exception();
  }
  Py_RETURN_NONE;
}

PyObject* driver_version(PyObject*, PyObject*) {
  int driver = 0;
  // Without a driver the version is 0, as from the call itself.
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  return PyLong_FromLong(driver);
}

PyMethodDef definition(const char* name,
                       PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL, nullptr};
}

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  if (!diglot::torch_binding::find_dtypes()) return nullptr;
  if (!diglot::torch_binding::find_tensor_types()) return nullptr;
  static std::vector<PyMethodDef> methods;
  for (const auto& function : diglot::torch_binding::python_functions()) {
    methods.push_back(definition(function.name, function.function));
  }
  methods.push_back(definition("plan", diglot::torch_binding::plan_from_python));
  methods.push_back(definition("scratch_of", diglot::torch_binding::scratch_from_python));
  methods.push_back(definition("set_tunables", diglot::torch_binding::set_tunables_from_python));
  methods.push_back(
      {"set_chooser", diglot::torch_binding::set_chooser_from_python, METH_O, nullptr});
  methods.push_back(definition("check_device", check_device));
  methods.push_back({"driver_version", driver_version, METH_NOARGS, nullptr});
  methods.push_back({nullptr, nullptr, 0, nullptr});

  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods.data()};
  PyObject* result = PyModule_Create(&module);
  if (result == nullptr) return nullptr;
  if (!diglot::torch_binding::add_schemas(result)) return nullptr;
  if (!diglot::torch_binding::add_tunable_names(result)) return nullptr;
  PyModule_AddStringConstant(result, "architectures", DIGLOT_ARCHITECTURES);
  PyModule_AddStringConstant(result, "built_with_torch", DIGLOT_BUILT_WITH_TORCH);
  PyModule_AddIntConstant(result, "cuda_version", CUDART_VERSION);
  return result;
}
