// Python chooses the numbers that a problem is planned with (launch/choice.h).
#pragma once

#include "torch/python_abi.h"

namespace diglot::torch_binding {

// set_chooser(function): of (op, launcher, gpu, dtypes, layout, shape), whose answer is a tuple of
// (name, value), or None. It must not raise.
PyObject* set_chooser_from_python(PyObject* module, PyObject* function);

}  // namespace diglot::torch_binding
