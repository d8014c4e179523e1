#include "torch/tunables.h"

#include "torch/launcher.h"
#include "torch/tuple_reader.h"

namespace diglot::torch_binding {

std::vector<Tunables::Entry> read_numbers(PyObject* pairs) {
  std::vector<Tunables::Entry> entries;
  const TupleReader every(pairs);
  for (std::size_t i = 0; i < every.size(); ++i) {
    TupleReader pair(every.items()[i]);
    std::string name(pair.text());
    entries.push_back({std::move(name), pair.integer()});
  }
  return entries;
}

std::shared_ptr<const Tunables> read_tunables(PyObject* pairs, std::string_view gpu) {
  return std::make_shared<const Tunables>(read_numbers(pairs), std::string(gpu));
}

PyObject* set_tunables_from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    check_count(3, count);
    const auto device = static_cast<int>(PythonReader(arguments).read<int64_t>());
    const auto gpu = PythonReader(arguments + 2).read<std::string_view>();
    TunablesOfDevices::instance().set(device, read_tunables(arguments[1], gpu));
    PlanCache::clear_all();
    Py_RETURN_NONE;
  } catch (...) {
    return raise_current_exception();
  }
}

bool add_tunable_names(PyObject* module) {
  PyObject* const names = PyList_New(0);
  if (names == nullptr) return false;
  for (const char* const name : kTunableNames) {
    PyObject* const text = PyUnicode_FromString(name);
    const bool is_added = text != nullptr && PyList_Append(names, text) == 0;
    Py_XDECREF(text);
    if (!is_added) {
      Py_DECREF(names);
      return false;
    }
  }
  const bool is_added = PyModule_AddObjectRef(module, "tunables", names) == 0;
  Py_DECREF(names);
  return is_added;
}

}  // namespace diglot::torch_binding
