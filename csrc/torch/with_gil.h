// Holds Python's lock for a while.
#pragma once

#include <unistd.h>

#include "torch/python_abi.h"

namespace diglot::torch_binding {

// RAII: holds Python's lock, from any thread, also within WithoutGil.
class WithGil {
 public:
  WithGil() : state_(ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  static int ensure() {
    try {
      return PyGILState_Ensure();
    } catch (...) {  // Python has ended (gil.h)
      for (;;) pause();
    }
  }

  int state_;
};

}  // namespace diglot::torch_binding
