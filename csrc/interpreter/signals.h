// Turns signals that a kernel causes into faults: its stack overflows, or there is no such memory.
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
