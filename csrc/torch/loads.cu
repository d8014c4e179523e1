// Copies a call's tensors to where a CUDA graph reads them, without PyTorch's dispatcher.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "diglot/copies.cuh"
#include "diglot/launch/launch.h"
#include "torch/launcher.h"
#include "torch/tuple_reader.h"

namespace {

using namespace diglot;
using namespace diglot::torch_binding;

constexpr const char* kCapsule = "diglot.load";
constexpr int kHost = -1;            // in place of a GPU's index
constexpr int64_t kSmall = 1 << 20;  // bytes that one launch copies, with others; the runtime: more
constexpr int64_t kMostRows = 1024;  // the runtime's copy of more rows with gaps is slow

// Where a graph reads a tensor.
class Target {
 public:
  explicit Target(TupleReader reader)
      : address_(reader.address<char>()),
        element_bytes_(reader.integer()),
        sizes_(integers(reader.tuple())),
        strides_(integers(reader.tuple())),
        inner_first_(sizes_.size()) {
    if (strides_.size() != sizes_.size()) throw std::invalid_argument("make_load: no such tensor");
    std::iota(inner_first_.begin(), inner_first_.end(), std::size_t{0});
    std::stable_sort(inner_first_.begin(), inner_first_.end(),
                     [&](std::size_t a, std::size_t b) { return strides_[a] < strides_[b]; });
  }

  std::size_t rank() const { return sizes_.size(); }

  bool is_at(const char* address, const int64_t* strides) const {
    return address == address_ && std::equal(strides_.begin(), strides_.end(), strides);
  }

  // The copy from a tensor of the same sizes; none if it lies otherwise than in such rows.
  std::optional<Rows> rows_from(const char* address, const int64_t* strides) const {
    Rows rows{address_, address, element_bytes_, 1, 0, 0};
    for (const std::size_t d : inner_first_) {
      const int64_t size = sizes_[d];
      if (size == 1) continue;
      const int64_t to = strides_[d] * element_bytes_, from = strides[d] * element_bytes_;
      if (rows.count == 1 && to == rows.bytes && from == rows.bytes) {
        rows.bytes *= size;
      } else if (rows.count == 1) {
        rows.count = size, rows.to_pitch = to, rows.from_pitch = from;
      } else if (to == rows.to_pitch * rows.count && from == rows.from_pitch * rows.count) {
        rows.count *= size;
      } else {
        return std::nullopt;
      }
    }
    if (rows.bytes * rows.count <= kSmall) return rows;
    constexpr int64_t kWidest = std::numeric_limits<int32_t>::max();  // that CUDA takes
    const auto [least, most] = std::minmax(rows.to_pitch, rows.from_pitch);
    if (rows.count > 1 && (rows.count > kMostRows || least < rows.bytes || most > kWidest)) {
      return std::nullopt;
    }
    return rows;
  }

 private:
  static std::vector<int64_t> integers(PyObject* tuple) {
    TupleReader reader(tuple);
    std::vector<int64_t> found(reader.size());
    for (int64_t& each : found) each = reader.integer();
    return found;
  }

  char* address_;
  int64_t element_bytes_;
  std::vector<int64_t> sizes_, strides_;
  std::vector<std::size_t> inner_first_;  // its dimensions
};

struct Load {
  int device;
  const char *begin, *end;  // of the memory that has all targets
  std::vector<Target> targets;

  // The copies from tensors with these addresses and strides, as `read_call` tells them. None for
  // a tensor that is in its place. Nothing if PyTorch should copy.
  std::optional<std::vector<Rows>> copies_from(const int64_t* where, std::size_t count) const {
    std::vector<Rows> copies;
    const int64_t* const last = where + count;
    for (const Target& target : targets) {
      if (last - where < 1 + static_cast<std::ptrdiff_t>(target.rank())) return std::nullopt;
      const char* const address = reinterpret_cast<const char*>(*where);
      const int64_t* const strides = where + 1;
      where = strides + target.rank();
      if (target.is_at(address, strides)) continue;
      const std::optional<Rows> rows = target.rows_from(address, strides);
      // In the memory of the targets another copy could write over it.
      if (!rows || copies.size() == kMostCopies || (begin <= address && address < end)) {
        return std::nullopt;
      }
      copies.push_back(*rows);
    }
    return copies;
  }
};

void enqueue_large(const Rows& rows, cudaStream_t stream) {
  const auto kind = cudaMemcpyDeviceToDevice;
  if (rows.count == 1) {
    check(cudaMemcpyAsync(rows.to, rows.from, rows.bytes, kind, stream), "cudaMemcpyAsync");
  } else {
    check(cudaMemcpy2DAsync(rows.to, rows.to_pitch, rows.from, rows.from_pitch, rows.bytes,
                            rows.count, kind, stream),
          "cudaMemcpy2DAsync");
  }
}

void enqueue(const std::vector<Rows>& every, cudaStream_t stream) {
  Copies small{};
  unsigned count = 0;
  int64_t most = 0;
  for (const Rows& rows : every) {
    const int64_t bytes = rows.bytes * rows.count;
    if (bytes > kSmall) {
      enqueue_large(rows, stream);
    } else if (bytes > 0) {
      small.each[count++] = rows;
      most = std::max(most, bytes);
    }
  }
  constexpr int64_t kBlockBytes = kCopyThreads * sizeof(uint4);
  if (count > 0)
    launch<copy_rows>({blocks_for(most, kBlockBytes), count}, kCopyThreads, stream, small);
}

void copy_on_host(const Rows& rows) {
  for (int64_t i = 0; i < rows.count; ++i) {
    std::memcpy(rows.to + i * rows.to_pitch, rows.from + i * rows.from_pitch, rows.bytes);
  }
}

Load* load_of(PyObject* capsule) {
  void* const load = PyCapsule_GetPointer(capsule, kCapsule);
  if (load == nullptr) throw PythonError{};
  return static_cast<Load*>(load);
}

// make_load(device, begin, end, targets) -> load
//
//   device      a GPU's index; -1 for the host's memory
//   begin, end  addresses: of the memory that has all targets
//   targets     a tuple of (address, bytes of an element, sizes, strides), which lie within it and
//               do not overlap
PyObject* make_load(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 4, [&] {
    const auto integer = [&](int i) { return PythonReader(arguments + i).read<int64_t>(); };
    auto load = std::make_unique<Load>(Load{static_cast<int>(integer(0)),
                                            reinterpret_cast<const char*>(integer(1)),
                                            reinterpret_cast<const char*>(integer(2)),
                                            {}});
    TupleReader targets(arguments[3]);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      load->targets.emplace_back(TupleReader(targets.tuple()));
    }
    PyObject* const capsule =
        PyCapsule_New(load.get(), kCapsule, [](PyObject* capsule) { delete load_of(capsule); });
    if (capsule == nullptr) throw PythonError{};
    load.release();
    return capsule;
  });
}

// copy_into(load, where, stream) -> bool
//
// Copies tensors to the targets. Their dtypes and sizes are the targets', and `where` is what
// `read_call` says of their places. A tensor that is in its place is not copied. Returns False, and
// copies nothing, where PyTorch should copy: many tensors, layouts that are no rows, and tensors in
// the targets' memory.
PyObject* copy_into(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 3, [&] {
    const Load& load = *load_of(arguments[0]);
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(arguments[1], &bytes, &size) != 0) throw PythonError{};
    auto* const stream =
        reinterpret_cast<cudaStream_t>(PythonReader(arguments + 2).read<int64_t>());
    const auto copies =
        load.copies_from(reinterpret_cast<const int64_t*>(bytes), size / sizeof(int64_t));
    if (!copies) return PyBool_FromLong(0);
    if (load.device == kHost) {
      for (const Rows& rows : *copies) copy_on_host(rows);
    } else if (!copies->empty()) {
      const WithoutGil gil;
      const DeviceGuard guard(load.device);
      enqueue(*copies, stream);
    }
    return PyBool_FromLong(1);
  });
}

const bool registered = [] {
  python_functions().push_back({"make_load", make_load});
  python_functions().push_back({"copy_into", copy_into});
  return true;
}();

}  // namespace
