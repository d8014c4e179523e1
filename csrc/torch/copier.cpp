// Threads that copy between arrays in host memory and pinned buffers, as functions of Python. While
// they copy, they use nothing of Python and do not wait for its lock.
#include <unistd.h>

#include <chrono>
#include <future>
#include <map>

#include "pipeline/host_array.h"
#include "pipeline/workers.h"
#include "torch/launcher.h"
#include "torch/tuple_reader.h"

namespace {

using namespace diglot;
using namespace diglot::torch_binding;
using pipeline::HostArray;

using Span = std::pair<double, double>;

constexpr const char* kCapsule = "diglot.copier";

// Bytes of an array, and their buffer: copied to the buffer, or from it if the array is an output.
struct Piece {
  HostArray array;  // an array of one-byte rows that begins with the piece
  char* buffer;
  int64_t size;

  void copy() const {
    if (array.is_output) {
      array.write(0, size, buffer);
    } else {
      array.read(0, size, buffer);
    }
  }
};

// The clock of Python's time.perf_counter.
double now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

struct Copier {
  explicit Copier(int threads) : workers(threads) {}
  // Whether this process has the threads: the child of a fork has none.
  bool is_here() const { return getpid() == owner; }
  const pid_t owner = getpid();
  std::map<int64_t, std::future<Span>> copies;  // by ticket, until somebody waits for them
  int64_t tickets = 0;
  pipeline::Workers workers;
};

Copier& copier_of(PyObject* capsule) {
  void* const copier = PyCapsule_GetPointer(capsule, kCapsule);
  if (copier == nullptr) throw PythonError{};
  return *static_cast<Copier*>(copier);
}

// The same, but an error in a process without its threads.
Copier& working(PyObject* capsule) {
  Copier& copier = copier_of(capsule);
  if (!copier.is_here()) throw std::runtime_error("threads do not outlive a fork");
  return copier;
}

void destroy(PyObject* capsule) {
  auto* const copier = static_cast<Copier*>(PyCapsule_GetPointer(capsule, kCapsule));
  if (!copier->is_here()) return;  // waiting for its threads would never end
  const WithoutGil gil;
  delete copier;
}

auto find(Copier& copier, PyObject* ticket) {
  const auto found = copier.copies.find(PythonReader(&ticket).read<int64_t>());
  if (found == copier.copies.end()) throw std::invalid_argument("there are no such copies");
  return found;
}

// make_copier(threads) -> copier
PyObject* make_copier(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 1, [&] {
    const int64_t threads = PythonReader(arguments).read<int64_t>();
    if (threads < 1) throw std::invalid_argument("make_copier: there must be a thread");
    auto copier = std::make_unique<Copier>(static_cast<int>(threads));
    PyObject* const capsule = PyCapsule_New(copier.get(), kCapsule, destroy);
    if (capsule != nullptr) copier.release();
    return capsule;
  });
}

// submit_copies(copier, pieces) -> ticket
//
// pieces  a tuple of (is_output, address, size, buffer, file, offset, margin, is_new):
//   address, size  the bytes
//   buffer         the address of their pinned buffer
//   file, offset   a descriptor, and the bytes' place in the file, if their memory is a map of it;
//                  otherwise -1
//   margin         with this much room on the disk beyond the written bytes, no blocks are
//                  reserved first
//   is_new         nothing was written to the memory yet, so its pages are made ready
//
// A thread copies them, in order. Memory and file must stay until wait_for_copies.
PyObject* submit_copies(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 2, [&] {
    Copier& copier = working(arguments[0]);
    TupleReader tuples(arguments[1]);
    std::vector<Piece> pieces(tuples.size());
    for (Piece& piece : pieces) {
      TupleReader reader(tuples.tuple());
      piece.array.is_output = reader.boolean();
      piece.array.row_bytes = 1;
      piece.array.address = reader.address<char>();
      piece.size = reader.integer();
      piece.buffer = reader.address<char>();
      piece.array.file = static_cast<int>(reader.integer());
      piece.array.offset = reader.integer();
      piece.array.margin = reader.integer();
      piece.array.is_new = reader.boolean();
      if (piece.size < 0) throw std::invalid_argument("submit_copies: a size is negative");
    }
    const int64_t ticket = copier.tickets++;
    copier.copies[ticket] = copier.workers.submit([pieces = std::move(pieces)] {
      const double began = now();
      for (const Piece& piece : pieces) piece.copy();
      return Span{began, now()};
    });
    return PyLong_FromLong(ticket);
  });
}

// are_copied(copier, ticket) -> bool
PyObject* are_copied(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 2, [&] {
    const auto& copies = find(working(arguments[0]), arguments[1])->second;
    return PyBool_FromLong(copies.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  });
}

// wait_for_copies(copier, ticket) -> (began, ended), by time.perf_counter
//
// Raises the error of a failed copy, for example OSError with the system's words.
PyObject* wait_for_copies(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 2, [&] {
    Copier& copier = working(arguments[0]);
    const auto found = find(copier, arguments[1]);
    std::future<Span> copies = std::move(found->second);
    copier.copies.erase(found);
    {
      const WithoutGil gil;
      copies.wait();
    }
    const auto [began, ended] = copies.get();
    return Py_BuildValue("(dd)", began, ended);
  });
}

// close_copier(copier): waits until no thread copies, and ends them. Copies that have not begun are
// dropped.
PyObject* close_copier(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 1, [&] {
    Copier& copier = copier_of(arguments[0]);
    if (copier.is_here()) {
      const WithoutGil gil;
      copier.workers.finish();
    }
    Py_RETURN_NONE;
  });
}

const bool registered = [] {
  constexpr PythonFunction kFunctions[] = {{"make_copier", make_copier},
                                           {"submit_copies", submit_copies},
                                           {"are_copied", are_copied},
                                           {"wait_for_copies", wait_for_copies},
                                           {"close_copier", close_copier}};
  for (const PythonFunction& function : kFunctions) python_functions().push_back(function);
  return true;
}();

}  // namespace
