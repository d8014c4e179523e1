// Watches the objects that a CUDA graph depends on. One call checks before a replay that each is in
// its place, and that tensors among them have kept their addresses and layouts.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "torch/launcher.h"
#include "torch/python_tensors.h"
#include "torch/tuple_reader.h"

namespace {

using namespace diglot;
using namespace diglot::torch_binding;

constexpr const char* kCapsule = "diglot.watch";

// Where an object was. It refers to objects of the tuple that it was read from.
class Place {
 public:
  Place(PyObject* owner, PyObject* key, PyObject* value) : owner_(owner), key_(key), value_(value) {
    while (is_dict() && !is_at_position() && PyDict_Next(owner_, &position_, nullptr, nullptr)) {
    }
  }

  PyObject* value() const { return value_; }

  // Whether owner[key] is the value. Most owners are dictionaries that keep their order.
  bool is_held() const {
    if (is_dict() && is_at_position()) return true;
    PyObject* const now = PyObject_GetItem(owner_, key_);
    Py_XDECREF(now);
    if (now == nullptr) {
      if (!PyErr_ExceptionMatches(PyExc_LookupError)) throw PythonError{};
      PyErr_Clear();
    }
    return now == value_;
  }

 private:
  bool is_dict() const { return owner_->ob_type == &PyDict_Type; }
  bool is_at_position() const {
    Py_ssize_t position = position_;
    PyObject *key = nullptr, *value = nullptr;
    return PyDict_Next(owner_, &position, &key, &value) && key == key_ && value == value_;
  }

  PyObject *owner_, *key_, *value_;
  Py_ssize_t position_ = 0;  // in a dictionary: to look there needs no search
};

// A tensor, which is kept alive. A graph may read thousands, so the shim's functions are called
// without the wrapper around them.
class Watched {
 public:
  // Appends sizes and strides to `lengths`.
  Watched(torch::stable::Tensor tensor, std::vector<int64_t>& lengths)
      : tensor_(std::move(tensor)) {
    const Layout layout = read();
    address_ = layout.address, rank_ = layout.rank;
    lengths.insert(lengths.end(), layout.sizes, layout.sizes + rank_);
    lengths.insert(lengths.end(), layout.strides, layout.strides + rank_);
  }

  // Whether its memory is where it was, and has these lengths. Goes on to the next tensor's.
  bool is_unchanged(const int64_t*& lengths) const {
    const Layout now = read();
    if (now.address != address_ || now.rank != rank_) return false;
    const int64_t* const sizes = std::exchange(lengths, lengths + 2 * rank_);
    for (int64_t d = 0; d < rank_; ++d) {
      if (now.sizes[d] != sizes[d] || now.strides[d] != sizes[rank_ + d]) return false;
    }
    return true;
  }

 private:
  struct Layout {
    void* address;
    int64_t rank;
    int64_t *sizes, *strides;
  };
  Layout read() const {
    Layout layout;
    AtenTensorHandle const tensor = tensor_.get();
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &layout.address));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &layout.rank));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &layout.sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &layout.strides));
    return layout;
  }

  torch::stable::Tensor tensor_;
  void* address_;
  int64_t rank_;
};

struct Watch {
  std::vector<Watched> tensors;
  std::vector<int64_t> lengths;  // of each tensor its sizes, then its strides
  std::vector<Place> places;     // those of the tensors come first
  std::vector<char> gradients;   // whether each tensor requires grad; empty if it may change

  // The first place that has changed; -1 if none has.
  long first_changed() {
    const int64_t* next = lengths.data();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!places[i].is_held() || (i < tensors.size() && !tensors[i].is_unchanged(next))) {
        return static_cast<long>(i);
      }
    }
    return changed_gradient();
  }

 private:
  // Python alone knows, and takes longer to say it than all else here. So each call asks a few
  // tensors, in turn.
  long changed_gradient() {
    constexpr std::size_t kAsked = 8;
    for (std::size_t i = 0; i < std::min(kAsked, gradients.size()); ++i) {
      if (requires_grad(places[asked_].value()) != static_cast<bool>(gradients[asked_])) {
        return static_cast<long>(asked_);  // which the next call asks again
      }
      asked_ = (asked_ + 1) % gradients.size();
    }
    return -1;
  }

  std::size_t asked_ = 0;
};

Watch* watch_of(PyObject* capsule) {
  void* const watch = PyCapsule_GetPointer(capsule, kCapsule);
  if (watch == nullptr) throw PythonError{};
  return static_cast<Watch*>(watch);
}

// diglot_cuda::watch(Tensor[] tensors) -> int: an address, for `own_watch`. PyTorch's stable ABI
// hands tensors to operators alone, and cannot look into a Python object.
void watch(StableIValue* stack, uint64_t, uint64_t) {
  auto tensors = torch::stable::detail::to<std::vector<torch::stable::Tensor>>(stack[0]);
  auto made = std::make_unique<Watch>();
  for (torch::stable::Tensor& tensor : tensors) {
    made->tensors.emplace_back(std::move(tensor), made->lengths);
  }
  stack[0] = torch::stable::detail::from(reinterpret_cast<int64_t>(made.release()));
}

// own_watch(address, (owner, key, value, owner, key, value, ...), with_gradients) -> watch
//
// The first places are those of the tensors. The watch holds no reference to the objects, because
// Python's collector of garbage would not see it. Who has the watch keeps the tuple.
PyObject* own_watch(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 3, [&] {
    std::unique_ptr<Watch> watch(reinterpret_cast<Watch*>(PythonReader(arguments).read<int64_t>()));
    TupleReader parts(arguments[1]);
    PyObject* const* const items = parts.items();
    for (std::size_t i = 0; i + 2 < parts.size(); i += 3) {
      watch->places.emplace_back(items[i], items[i + 1], items[i + 2]);
    }
    if (PythonReader(arguments + 2).read<bool>()) {
      for (std::size_t i = 0; i < watch->tensors.size(); ++i) {
        watch->gradients.push_back(requires_grad(watch->places.at(i).value()));
      }
    }
    PyObject* const capsule =
        PyCapsule_New(watch.get(), kCapsule, [](PyObject* capsule) { delete watch_of(capsule); });
    if (capsule == nullptr) throw PythonError{};
    watch.release();
    return capsule;
  });
}

// first_changed(watch, its tuple) -> int
//
// The first place that holds another object than `value`, or whose tensor has changed; otherwise
// -1. If tensors must go on to require grad, or not to, each call asks eight of them, in turn.
PyObject* first_changed(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return returned(count, 2,
                  [&] { return PyLong_FromLong(watch_of(arguments[0])->first_changed()); });
}

const bool registered = [] {
  python_functions().push_back({"own_watch", own_watch});
  python_functions().push_back({"first_changed", first_changed});
  return true;
}();

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diglot_cuda, m) { m.def("watch(Tensor[] tensors) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(diglot_cuda, CompositeExplicitAutograd, m) { m.impl("watch", &watch); }
