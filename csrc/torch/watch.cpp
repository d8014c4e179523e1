// Watches the objects that a CUDA graph depends on. One call checks before a replay that each is in
// its place, and that tensors among them have kept their addresses and layouts.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <vector>

#include "torch/launcher.h"

namespace {

using namespace diglot;
using namespace diglot::torch_binding;

constexpr const char* kCapsule = "diglot.watch";

// A tensor, which is kept alive, and what a graph knows of it.
class Watched {
 public:
  explicit Watched(torch::stable::Tensor tensor)
      : tensor_(std::move(tensor)), address_(tensor_.data_ptr()), rank_(tensor_.dim()) {
    const auto sizes = tensor_.sizes(), strides = tensor_.strides();
    lengths_.assign(sizes.begin(), sizes.end());
    lengths_.insert(lengths_.end(), strides.begin(), strides.end());
  }

  bool is_unchanged() const {
    // The shim's own functions are quicker than the wrapper's. A graph may read thousands of
    // tensors.
    int64_t *sizes = nullptr, *strides = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor_.get(), &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor_.get(), &strides));
    return tensor_.data_ptr() == address_ && tensor_.dim() == rank_ &&
           std::equal(sizes, sizes + rank_, lengths_.begin()) &&
           std::equal(strides, strides + rank_, lengths_.begin() + rank_);
  }

 private:
  torch::stable::Tensor tensor_;
  void* address_;
  int64_t rank_;
  std::vector<int64_t> lengths_;  // sizes, then strides
};

using Watch = std::vector<Watched>;

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
  for (torch::stable::Tensor& tensor : tensors) made->emplace_back(std::move(tensor));
  stack[0] = torch::stable::detail::from(reinterpret_cast<int64_t>(made.release()));
}

// own_watch(address) -> watch
PyObject* own_watch(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    check_count(1, count);
    auto* const watch = reinterpret_cast<Watch*>(PythonReader(arguments).read<int64_t>());
    return PyCapsule_New(watch, kCapsule, [](PyObject* capsule) { delete watch_of(capsule); });
  } catch (...) {
    return raise_current_exception();
  }
}

// Whether owner[key] is `value`. Most owners are dictionaries, whose own look-up is quicker.
bool is_there(PyObject* owner, PyObject* key, PyObject* value) {
  const bool is_dict = owner->ob_type == &PyDict_Type;
  PyObject* const now = is_dict ? PyDict_GetItemWithError(owner, key)  // borrowed
                                : PyObject_GetItem(owner, key);
  if (now == nullptr) {
    if (!PyErr_Occurred()) return false;
    if (!PyErr_ExceptionMatches(PyExc_LookupError)) throw PythonError{};
    PyErr_Clear();
    return false;
  }
  if (!is_dict) Py_DECREF(now);
  return now == value;
}

// first_changed(watch, (owner, key, value, owner, key, value, ...)) -> int
//
// The first place that holds another object than `value`, or whose tensor has changed; otherwise
// -1. The first places are those of the watch's tensors.
PyObject* first_changed(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    check_count(2, count);
    const Watch& watch = *watch_of(arguments[0]);
    PyObject* const places = arguments[1];
    const Py_ssize_t length = PyTuple_Size(places);
    if (length < 0) throw PythonError{};
    for (Py_ssize_t i = 0; 3 * i + 2 < length; ++i) {
      const auto part = [&](Py_ssize_t number) { return PyTuple_GetItem(places, 3 * i + number); };
      const bool is_watched = i < static_cast<Py_ssize_t>(watch.size());
      if (!is_there(part(0), part(1), part(2)) || (is_watched && !watch[i].is_unchanged())) {
        return PyLong_FromLong(static_cast<long>(i));
      }
    }
    return PyLong_FromLong(-1);
  } catch (...) {
    return raise_current_exception();
  }
}

const bool registered = [] {
  python_functions().push_back({"own_watch", own_watch});
  python_functions().push_back({"first_changed", first_changed});
  return true;
}();

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diglot_cuda, m) { m.def("watch(Tensor[] tensors) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(diglot_cuda, CompositeExplicitAutograd, m) { m.impl("watch", &watch); }
