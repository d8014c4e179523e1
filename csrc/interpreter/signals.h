// Turns signals that a kernel causes into faults: its stack overflows, there is no such memory, or
// the least integer is divided by -1.
#pragma once

#include <memory>

namespace diglot::interpreter {

// While one lives, this OS thread has a stack for signals, and those of kernels are caught.
class CatchSignals {
 public:
  CatchSignals();
  ~CatchSignals();
  CatchSignals(const CatchSignals&) = delete;
  CatchSignals& operator=(const CatchSignals&) = delete;

 private:
  std::unique_ptr<char[]> signal_stack_;  // null: the thread had one
};

}  // namespace diglot::interpreter
