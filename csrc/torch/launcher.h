// One launcher, two ways in: as an operator of torch.library (what compiled graphs call) and as a
// function of the Python module (what eager code calls, without the dispatcher's cost).
//
//   void gelu_forward(const Stream& stream, const Operand& input, std::string_view approximate,
//                     const Operand& out);
//   DIGLOT_LAUNCHER(gelu_forward,
//                   "(Tensor input, str approximate, Tensor(a!) out, Tensor(b!)? scratch) -> ()")
//
// Every schema ends with the scratch, which launchers ask the stream for. A call from Python
// returns the variant's name, or, if it needs scratch and has none, launches nothing and returns
// the requirement: (bytes, zeroed, lifetime).
//
// Bound to its arguments it is called again and again with other operands
// (csrc/torch/pipeline.cpp).
//
// A launcher runs with its output's device current. Only this folder includes PyTorch's headers.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "diglot/launch.cuh"
#include "diglot/operand.h"
#include "diglot/scratch.h"
#include "torch/python_abi.h"

namespace diglot {

// A Python number, exact in whichever of the two kinds the launcher computes in.
struct Number {
  double real = 0;
  int64_t integer = 0;

  template <typename Compute>
  Compute as() const {
    if constexpr (std::is_floating_point_v<Compute>) {
      return static_cast<Compute>(real);
    } else {
      return static_cast<Compute>(integer);
    }
  }
};

// Tensors that a kernel reaches by addresses in a tensor of its own: a launcher only says with it
// that they are used, and looks at none of them.
struct TensorList {};

namespace torch_binding {

// PyTorch's current stream on `device`.
cudaStream_t current_stream(int device);

#if !defined(DIGLOT_INTERPRETER)
// Makes `device` current for a scope. Going back is PyTorch's business, which alone knows whether
// the device left has a context yet: setting it by the CUDA runtime would make one.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    int current = 0;
    check(cudaGetDevice(&current), "cudaGetDevice");
    if (current != device) guard_.emplace(device);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};
#endif

// Takes Python's lock again. When Python ends, it ends other threads that ask for it, by unwinding
// them, which no destructor of C++ takes: such a thread sleeps until the process is gone, as Python
// has it do from 3.14 on.
inline void restore_thread(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) pause();
  }
}

// Lets other Python threads run for a scope: a launch waits when the GPU's queue is full.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { restore_thread(state_); }
  // Calls function() with the lock.
  template <typename Function>
  void interrupt(const Function& function) {
    restore_thread(state_);
    struct Release {
      PyThreadState*& state;
      ~Release() { state = PyEval_SaveThread(); }
    } release{state_};
    function();
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};
struct Nothing {};

// Reads a launcher's arguments off an operator's stack.
class StackReader {
 public:
  explicit StackReader(StableIValue* stack) : stack_(stack) {}
  template <typename T>
  T read();
  int device() const { return device_; }

 private:
  const Operand& read_tensor(torch::stable::Tensor tensor);

  StableIValue* stack_;
  std::deque<torch::stable::Tensor> tensors_;
  std::deque<Operand> operands_;
  std::deque<std::string> strings_;
  int device_ = -1;
};

// Reads a launcher's arguments off a Python call. Tensors are plain ones, already validated.
class PythonReader {
 public:
  explicit PythonReader(PyObject* const* arguments) : arguments_(arguments) {}
  template <typename T>
  T read();
  int device() const { return device_; }
  // Fills in sizes and strides, once all arguments are read.
  void describe();
  // The tensors, in order, without those that were left out.
  int tensors() const { return count_; }
  Operand& operand(int i) { return operands_[i]; }
#if defined(DIGLOT_INTERPRETER)
  // The memory of the operands, of which the schema marks those that are written, as Tensor(a!).
  std::vector<interpreter::Range> ranges(std::string_view schema) const;
#endif

 private:
  static constexpr int kMaxTensors = 10;
  const Operand& read_tensor(PyObject* tensor);

  PyObject* const* arguments_;
  PyObject* tensors_[kMaxTensors];
  Operand operands_[kMaxTensors];
  int slots_[kMaxTensors];  // which of the schema's tensors each is: some may be left out
  int count_ = 0;
  int slot_ = 0;
#if defined(DIGLOT_INTERPRETER)
  std::vector<std::pair<PyObject*, int>> lists_;  // with their slots
  std::vector<std::pair<Operand, int>> listed_;   // the tensors in them, likewise
#endif
  int device_ = -1;
};

// A launcher with its arguments, which are read once.
template <typename Reader, typename... Parameters>
class Call {
 public:
  // Braces order the reads from left to right.
  Call(void (*launcher)(const Stream&, Parameters...), Reader& reader, std::string_view schema)
      : launcher_(launcher),
        reader_(reader),
        schema_(schema),
        arguments_{reader.template read<Parameters>()...},
        scratch_(reader.template read<const Operand*>()) {
    if constexpr (std::is_same_v<Reader, PythonReader>) reader.describe();
  }

  // Runs it with what the reader's operands are now. Nothing of Python is needed.
  void operator()(cudaStream_t handle) const {
    const Stream stream(handle, scratch_);
#if defined(DIGLOT_INTERPRETER)
    // Tensors are in the host's memory, and a kernel may touch these and no other.
    const interpreter::Arguments scope(reader_.ranges(schema_));
#endif
    std::apply([&](const auto&... argument) { launcher_(stream, argument...); }, arguments_);
  }

 private:
  void (*launcher_)(const Stream&, Parameters...);
  [[maybe_unused]] const Reader& reader_;
  [[maybe_unused]] std::string_view schema_;
  std::tuple<Parameters...> arguments_;
  const Operand* scratch_;
};

template <typename Reader, typename... Parameters>
void call_launcher(void (*launcher)(const Stream&, Parameters...), Reader& reader,
                   std::string_view schema = {}) {
  const Call<Reader, Parameters...> call(launcher, reader, schema);
  if (Recording::innermost() != nullptr) return call(nullptr);  // there may be no device
#if defined(DIGLOT_INTERPRETER)
  const WithoutGil gil;
  call(nullptr);
#else
  [[maybe_unused]] std::conditional_t<std::is_same_v<Reader, PythonReader>, WithoutGil, Nothing>
      gil;
  DeviceGuard guard(reader.device());
  call(current_stream(reader.device()));
#endif
}

// A launcher bound to the arguments of a Python call, which outlive it.
class BoundLauncher {
 public:
  explicit BoundLauncher(PyObject* const* arguments) : reader_(arguments) {}
  virtual ~BoundLauncher() = default;
  BoundLauncher(const BoundLauncher&) = delete;
  BoundLauncher& operator=(const BoundLauncher&) = delete;

  // The tensors among them, in order, without those that are None: they may be changed.
  int tensors() const { return reader_.tensors(); }
  Operand& operand(int i) { return reader_.operand(i); }
  // Runs it on a stream of the current device, on any thread, without the interpreter's lock.
  virtual void run(cudaStream_t stream) = 0;

 protected:
  PythonReader reader_;
};

// A function of the Python module; one that calls a launcher can also bind it.
struct PythonFunction {
  const char* name;
  PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t);
  std::unique_ptr<BoundLauncher> (*bind)(PyObject* const*, Py_ssize_t) = nullptr;
};
std::vector<PythonFunction>& python_functions();

// Looks up the dtype objects that Python calls are read with; false, with a Python error set, if
// that fails.
bool find_dtypes();

// A Python error is set; carries it through C++ frames.
struct PythonError {};

PyObject* raise_current_exception();

// (bytes, zeroed, lifetime).
PyObject* to_python(const Scratch& scratch);

// Python reads last_variant() after its own calls, when it is asked what ran: a compiled graph's
// call in between, on the same thread, leaves it as it was.
class KeptVariant {
 public:
  KeptVariant() = default;
  ~KeptVariant() { last_variant() = before_; }
  KeptVariant(const KeptVariant&) = delete;
  KeptVariant& operator=(const KeptVariant&) = delete;

 private:
  const char* before_ = last_variant();
};

template <auto kLauncher>
struct Entry;
template <typename... Parameters, void (*kLauncher)(const Stream&, Parameters...)>
struct Entry<kLauncher> {
  inline static std::string_view schema;

  static void from_stack(StableIValue* stack, uint64_t, uint64_t) {
    const KeptVariant kept;
    StackReader reader(stack);
    try {
      call_launcher(kLauncher, reader);
    } catch (const ScratchNeeded& needed) {
      throw std::invalid_argument("this call needs " + std::to_string(needed.scratch.bytes) +
                                  " bytes of scratch");
    }
  }
  static PyObject* from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    const char* const before = last_variant();
    try {
      check_count(count);
      PythonReader reader(arguments);
      call_launcher(kLauncher, reader, schema);
    } catch (const ScratchNeeded& needed) {
      last_variant() = before;
      return to_python(needed.scratch);
    } catch (...) {
      last_variant() = before;  // a call that failed did not run
      return raise_current_exception();
    }
    return PyUnicode_InternFromString(last_variant());
  }
  static std::unique_ptr<BoundLauncher> bind(PyObject* const* arguments, Py_ssize_t count) {
    check_count(count);
    return std::make_unique<Bound>(arguments);
  }

 private:
  class Bound final : public BoundLauncher {
   public:
    explicit Bound(PyObject* const* arguments)
        : BoundLauncher(arguments), call_(kLauncher, reader_, schema) {}
    void run(cudaStream_t stream) override {
      try {
        call_(stream);
      } catch (const ScratchNeeded&) {
        throw std::invalid_argument("a launcher that needs scratch cannot be bound");
      }
    }

   private:
    Call<PythonReader, Parameters...> call_;
  };

  static void check_count(Py_ssize_t count) {
    if (count == sizeof...(Parameters) + 1) return;
    PyErr_Format(PyExc_TypeError, "expected %d arguments, got %d",
                 static_cast<int>(sizeof...(Parameters)) + 1, static_cast<int>(count));
    throw PythonError{};
  }
};

}  // namespace torch_binding
}  // namespace diglot

#if defined(DIGLOT_INTERPRETER)
// Compiled graphs do not see into the interpreter: there are no operators of its launchers.
#define DIGLOT_OPERATOR(NAME, SCHEMA)
#else
#define DIGLOT_OPERATOR(NAME, SCHEMA)                                    \
  STABLE_TORCH_LIBRARY_FRAGMENT(diglot_cuda, m) { m.def(#NAME SCHEMA); } \
  STABLE_TORCH_LIBRARY_IMPL(diglot_cuda, CUDA, m) {                      \
    m.impl(#NAME, &diglot::torch_binding::Entry<NAME>::from_stack);      \
  }
#endif

#define DIGLOT_LAUNCHER(NAME, SCHEMA)                             \
  DIGLOT_OPERATOR(NAME, SCHEMA)                                   \
  static const bool NAME##_registered = [] {                      \
    diglot::torch_binding::Entry<NAME>::schema = SCHEMA;          \
    diglot::torch_binding::python_functions().push_back(          \
        {#NAME, &diglot::torch_binding::Entry<NAME>::from_python, \
         &diglot::torch_binding::Entry<NAME>::bind});             \
    return true;                                                  \
  }();
