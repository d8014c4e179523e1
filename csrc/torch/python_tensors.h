// What `diglot.graphs` asks of Python's tensors that PyTorch's stable ABI does not tell.
#pragma once

#include "torch/python_abi.h"

namespace diglot::torch_binding {

// Looks up what the functions below need, when the module is imported. Returns false, with a Python
// error set, if that fails. Their first call would be too late: an import lets other threads run,
// and one that waits for it in C++ keeps Python's lock.
bool find_tensor_types();

// Whether it is a torch.Tensor or a torch.nn.Parameter. A subclass may be something else.
bool is_plain_tensor(PyObject* object);

// Whether a plain tensor requires grad.
bool requires_grad(PyObject* tensor);

}  // namespace diglot::torch_binding
