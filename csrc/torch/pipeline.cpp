// run_pipeline: a launcher over chunks of arrays in host memory, as a function of Python.
#include <chrono>
#include <functional>
#include <optional>

#include "pipeline/ring.h"
#include "torch/launcher.h"
#include "torch/tuple_reader.h"
#include "torch/with_gil.h"

namespace {

using namespace diglot;
using namespace diglot::torch_binding;
using pipeline::HostArray;

std::vector<char*> read_addresses(PyObject* tuple) {
  TupleReader reader(tuple);
  std::vector<char*> addresses(reader.size());
  for (char*& address : addresses) address = reader.address<char>();
  return addresses;
}

// (is_output, row_bytes, device_addresses, pinned_addresses, address, file, offset,
//  margin, is_new)
HostArray read_array(PyObject* tuple, int slots, int64_t depth) {
  TupleReader reader(tuple);
  HostArray array;
  array.is_output = reader.boolean();
  array.row_bytes = reader.integer();
  array.buffers = read_addresses(reader.tuple());
  array.pinned = read_addresses(reader.tuple());
  array.address = reader.address<char>();
  array.file = static_cast<int>(reader.integer());
  array.offset = reader.integer();
  array.margin = reader.integer();
  array.is_new = reader.boolean();
  if (static_cast<int64_t>(array.buffers.size()) < slots ||
      (array.is_staged() && static_cast<int64_t>(array.pinned.size()) < depth)) {
    throw std::invalid_argument("run_pipeline: an array needs a buffer for every slot");
  }
  if (array.file >= 0 && !array.is_staged()) {
    throw std::invalid_argument("run_pipeline: a file needs pinned buffers");
  }
  return array;
}

// A launcher that runs on the rows of a slot's buffers.
class ChunkLauncher {
 public:
  ChunkLauncher(std::unique_ptr<CallBase> call, PyObject* places,
                const std::vector<HostArray>& arrays, int64_t chunk_rows)
      : call_(std::move(call)) {
    TupleReader reader(places);
    if (reader.size() != static_cast<std::size_t>(call_->tensors())) {
      throw std::invalid_argument("run_pipeline: places must have a number for every tensor");
    }
    for (int i = 0; i < call_->tensors(); ++i) {
      const int64_t place = reader.integer();
      if (place < 0) continue;
      Operand& operand = call_->operand(i);
      if (place >= static_cast<int64_t>(arrays.size()) || operand.rank == 0 ||
          operand.sizes[0] % chunk_rows != 0 ||
          operand.numel * size_of(operand.dtype) != arrays[place].row_bytes * chunk_rows) {
        throw std::invalid_argument("run_pipeline: a tensor must be a chunk of its array");
      }
      placed_.push_back(
          {operand, arrays[place], operand.numel / chunk_rows, operand.sizes[0] / chunk_rows});
    }
  }

  void operator()(cudaStream_t stream, int slot, int64_t rows) {
    for (const Placed& placed : placed_) {
      call_->set_address(placed.operand.number, placed.array.buffers[slot]);
      placed.operand.numel = placed.row_elements * rows;
      placed.operand.sizes[0] = placed.row_size * rows;
    }
    const auto kept_plan = call_->kept_plan();
    if (!call_->launch(kept_plan->plan, stream)) {
      throw std::invalid_argument("run_pipeline: a launcher that needs scratch has none");
    }
    variant_ = kept_plan->plan.variant;
  }

  const char* variant() const { return variant_; }

 private:
  struct Placed {
    Operand& operand;
    const HostArray& array;
    int64_t row_elements;
    int64_t row_size;  // in the first dimension, of one row
  };

  std::unique_ptr<CallBase> call_;
  std::vector<Placed> placed_;
  const char* variant_ = "";
};

// A function of Python's that starts the kernels of a chunk.
class PythonLauncher {
 public:
  // It kept its error, and said so.
  struct Failed {};

  explicit PythonLauncher(PyObject* function) : function_(function) {}
  void operator()(cudaStream_t stream, int slot, int64_t rows) const {
    const WithGil gil;
    // Simulated streams may come here after the error of a signal's handler.
    if (PyErr_Occurred() != nullptr) throw PythonError{};
    PyObject* const arguments = Py_BuildValue("(niL)", reinterpret_cast<Py_ssize_t>(stream), slot,
                                              static_cast<long long>(rows));
    PyObject* const result =
        arguments == nullptr ? nullptr : PyObject_CallObject(function_, arguments);
    Py_XDECREF(arguments);
    if (result == nullptr) throw PythonError{};  // of a signal's handler, before the function's
    const bool has_failed = result != Py_True;
    Py_DECREF(result);
    if (has_failed) throw Failed{};
  }

 private:
  PyObject* function_;
};

// Lets Python handle signals from time to time. A signal's handler may stop the run.
class Signals {
 public:
  explicit Signals(WithoutGil& gil) : gil_(gil) {}
  void operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    gil_.interrupt([] {
      if (PyErr_CheckSignals() != 0) throw PythonError{};
    });
  }

 private:
  WithoutGil& gil_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::vector<pipeline::Times> run(pipeline::Job& job, bool handles_signals) {
  WithoutGil gil;
  Signals signals(gil);
  if (handles_signals) job.between_chunks = [&] { signals(); };
#if !defined(DIGLOT_INTERPRETER)
  const DeviceGuard guard(job.device);
  job.caller = current_stream(job.device);
#endif
  return pipeline::Ring(job).run();
}

PyObject* to_python(const char* variant, const std::vector<pipeline::Times>& timeline) {
  PyObject* const list = PyList_New(0);
  for (const pipeline::Times& t : timeline) {
    PyObject* const entry =
        Py_BuildValue("(dddddddddd)", t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9]);
    const bool is_added = list != nullptr && entry != nullptr && PyList_Append(list, entry) == 0;
    Py_XDECREF(entry);
    if (!is_added) {
      Py_XDECREF(list);
      return nullptr;
    }
  }
  return Py_BuildValue("(sN)", variant, list);
}

// run_pipeline(launcher, arguments, places, arrays, rows, chunk_rows, num_slots, device,
//              copy_threads, control, handles_signals) -> (variant, times of the chunks)
//
//   launcher         the name of one, such as "gelu_forward"; or None, and a function of Python's
//                    is the only argument. It takes a stream's address, a slot and a number of
//                    rows, starts the kernels on the slot's first rows, and returns whether it did.
//                    It raises nothing. Simulated streams call it on any thread.
//   arguments        a tuple of the launcher's arguments without scratch, so the last is None;
//                    tensors have the shape of a whole chunk
//   places           a tuple: for each of these tensors the number of the array that it is a chunk
//                    of, or -1 if it is the same for all chunks
//   arrays           a tuple of (is_output, row_bytes, device_addresses, pinned_addresses, address,
//                    file, offset, margin, is_new):
//     device_addresses   a buffer for every slot
//     pinned_addresses   for a staged array num_slots + copy_threads buffers, or one for each chunk
//     address            the rows
//     file, offset       a descriptor, and the rows' place in the file, if their memory is a map of
//                        it; otherwise -1
//     margin             with this much room on the disk beyond the written bytes, no blocks are
//                        reserved first
//     is_new             pages of the memory may be missing, so they are made ready
//   num_slots        chunks that are on the device at once
//   device           an index; it means nothing where kernels are interpreted
//   copy_threads     that copy in each direction
//   control          the address of four int64: (stop, valid rows, chunk at work, 0)
//   handles_signals  whether this is Python's main thread, which then handles signals
//
// It runs without the interpreter's lock, after the work in PyTorch's current stream of this
// thread. All work is done when it returns. The variant is that of the last chunk's launch, "" if
// there was no chunk or a function started it. Times are ten floats for each finished chunk
// (ring.h). Returns None if the function failed. Raises ValueError for arguments that do not fit
// each other, and RuntimeError, which names the chunk, for later errors.
PyObject* run_pipeline(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  constexpr int kCount = 11;
  if (count != kCount) {
    PyErr_Format(PyExc_TypeError, "expected %d arguments, got %d", kCount, static_cast<int>(count));
    return nullptr;
  }
  try {
    TupleReader of_arrays(arguments[3]);
    PythonReader numbers(arguments + 4);
    const auto next = [&] { return numbers.read<int64_t>(); };
    const int64_t rows = next(), chunk_rows = next(), num_slots = next(), device = next(),
                  copy_threads = next();
    auto* const control = reinterpret_cast<int64_t*>(static_cast<intptr_t>(next()));
    const bool handles_signals = numbers.read<bool>();
    if (rows < 0 || chunk_rows < 1 || num_slots < 1 || copy_threads < 1) {
      throw std::invalid_argument("run_pipeline: sizes must be positive");
    }
    pipeline::Plan plan{rows, chunk_rows, 0};
    if (plan.chunks() == 0) return to_python("", {});
    plan.slots = static_cast<int>(std::min(num_slots, plan.chunks()));
    const int64_t depth =
        std::min(pipeline::Ring::depth(plan.slots, static_cast<int>(copy_threads)), plan.chunks());
    std::vector<HostArray> arrays;
    while (arrays.size() < of_arrays.size()) {
      arrays.push_back(read_array(of_arrays.tuple(), plan.slots, depth));
    }
    const TupleReader given(arguments[1]);
    std::optional<ChunkLauncher> launcher;
    std::function<void(cudaStream_t, int, int64_t)> launch;
    if (arguments[0] != Py_None) {
      launcher.emplace(find_launcher(PythonReader(arguments).read<std::string_view>())
                           .bind(given.items(), static_cast<Py_ssize_t>(given.size())),
                       arguments[2], arrays, chunk_rows);
      launch = std::ref(*launcher);
    } else if (given.size() == 1) {
      launch = PythonLauncher(given.items()[0]);
    } else {
      throw std::invalid_argument("run_pipeline: without a launcher there must be one function");
    }
    pipeline::Job job{plan,
                      arrays,
                      launch,
                      pipeline::Control(control),
                      static_cast<int>(copy_threads),
                      static_cast<int>(device),
                      nullptr,
                      nullptr};
    const auto timeline = run(job, handles_signals);
    return to_python(launcher ? launcher->variant() : "", timeline);
  } catch (const PythonLauncher::Failed&) {
    Py_RETURN_NONE;
  } catch (...) {
    return raise_current_exception();
  }
}

const bool registered = [] {
  python_functions().push_back({"run_pipeline", run_pipeline});
  return true;
}();

}  // namespace
