// Reads the items of a Python tuple, one after the other.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "torch/reader.h"

namespace diglot::torch_binding {

class TupleReader {
 public:
  explicit TupleReader(PyObject* tuple) {
    const Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0) throw PythonError{};
    for (Py_ssize_t i = 0; i < count; ++i) items_.push_back(PyTuple_GetItem(tuple, i));
  }
  std::size_t size() const { return items_.size(); }
  PyObject* const* items() const { return items_.data(); }
  PyObject* tuple() { return *address_of_next(); }
  int64_t integer() { return PythonReader(address_of_next()).read<int64_t>(); }
  std::string_view text() { return PythonReader(address_of_next()).read<std::string_view>(); }
  bool boolean() { return PythonReader(address_of_next()).read<bool>(); }
  template <typename T>
  T* address() {
    return reinterpret_cast<T*>(static_cast<intptr_t>(integer()));
  }

 private:
  PyObject* const* address_of_next() {
    if (next_ == items_.size()) throw std::invalid_argument("a tuple is too short");
    return &items_[next_++];
  }

  std::vector<PyObject*> items_;
  std::size_t next_ = 0;
};

}  // namespace diglot::torch_binding
