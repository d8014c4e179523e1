// Gives up Python's lock for a while.
#pragma once

#include <unistd.h>

#include "torch/python_abi.h"

namespace diglot::torch_binding {

// Takes Python's lock again. When Python ends, it unwinds other threads that ask for the lock, and
// no C++ destructor allows that. Such a thread sleeps here until the process is gone, as Python
// itself does from 3.14 on.
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

}  // namespace diglot::torch_binding
