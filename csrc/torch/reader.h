// Reads a launcher's arguments off a Python call, or off the stack of an operator of torch.library.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "diglot/launch/operand.h"
#include "torch/dlpack_abi.h"
#include "torch/python_abi.h"

namespace diglot {

// Tensors that a kernel reaches through addresses in another tensor. A launcher only declares their
// use, and looks at none of them.
struct TensorList {};

namespace torch_binding {

// A Python error is set; carries it through C++ frames.
struct PythonError {};

// A tensor of a call. Its operand has no strides yet if it is contiguous.
struct CallTensor {
  Operand operand;
  bool is_contiguous = false;
  int place = 0;  // among the schema's tensors; some may be absent
};

// The operands of a call: tensors and numbers. There is room for all of a launcher's parameters.
struct CallOperands {
  CallTensor* tensors = nullptr;
  void** addresses = nullptr;  // one for each tensor
  NumberValue* numbers = nullptr;
  int tensor_count = 0;
  int number_count = 0;
  int place = 0;    // that of the schema's next tensor
  int device = -1;  // the same for all tensors, which the caller has checked
#if defined(DIGLOT_INTERPRETER)
  std::vector<std::pair<CallTensor, void*>> listed;  // the tensors in lists, their addresses
#endif

  CallTensor& add_tensor();
  void set_address(CallTensor& tensor, void* address) {
    addresses[tensor.operand.number] = address;
    tensor.operand.remainder = reinterpret_cast<uintptr_t>(address) % kAddressModulus;
  }
  void* address(const CallTensor& tensor) const { return addresses[tensor.operand.number]; }
  int add_number(const NumberValue& value) {
    numbers[number_count] = value;
    return number_count++;
  }
};

class StackReader {
 public:
  explicit StackReader(StableIValue* stack) : stack_(stack) {}
  void read_into(CallOperands& operands) { operands_ = &operands; }
  template <typename T>
  T read();

 private:
  const Operand& read_tensor(torch::stable::Tensor tensor);

  StableIValue* stack_;
  CallOperands* operands_ = nullptr;
  std::deque<torch::stable::Tensor> tensors_;
  std::deque<std::string> strings_;
};

// Where tensors are assumed to begin: at their addresses; or, for a call that is only planned, in
// an aligned storage, or one element behind a 16-byte boundary.
enum class Alignment { kOfMemory, kOfStorage, kNone };

// Reads tensors that are already validated.
class PythonReader {
 public:
  explicit PythonReader(PyObject* const* arguments, Alignment alignment = Alignment::kOfMemory)
      : arguments_(arguments), alignment_(alignment) {}
  void read_into(CallOperands& operands) { operands_ = &operands; }
  template <typename T>
  T read();

 private:
  const Operand& read_tensor(PyObject* tensor);

  PyObject* const* arguments_;
  Alignment alignment_;
  CallOperands* operands_ = nullptr;
};

// Describes a Python tensor in one call. Returns false where PyTorch cannot: PyTorch 2.10, and
// tensors without memory of their own.
bool describe(PyObject* tensor, dlpack::Tensor& description);

// Looks up the dtype objects that Python calls pass. Returns false, with a Python error set, if
// that fails.
bool find_dtypes();

}  // namespace torch_binding
}  // namespace diglot
