// Reads Python's tunables.
#pragma once

#include <memory>

#include "diglot/launch/tunables.h"
#include "torch/python_abi.h"

namespace diglot::torch_binding {

// A tuple of (name, value).
std::vector<Tunables::Entry> read_numbers(PyObject* pairs);
// All tunables, for the GPU with this short name.
std::shared_ptr<const Tunables> read_tunables(PyObject* pairs, std::string_view gpu);

// set_tunables(device, pairs, gpu): sets the tunables of the device with this index, or with -1 of
// every other device. Existing plans are forgotten.
PyObject* set_tunables_from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// Adds `tunables`, the names of all. False after an error.
bool add_tunable_names(PyObject* module);

}  // namespace diglot::torch_binding
