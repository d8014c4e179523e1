// Python chooses numbers for planning a problem (launch/choice.h).
#pragma once

#include "torch/python_abi.h"

namespace diglot::torch_binding {

// set_chooser(function): function(op, launcher, gpu, dtypes, layout, shape) returns a tuple of
// (name, value), or None. It must not raise.
PyObject* set_chooser_from_python(PyObject* module, PyObject* function);

}  // namespace diglot::torch_binding
