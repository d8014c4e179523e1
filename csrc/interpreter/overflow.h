// Turns the overflow of a kernel's stack, a signal, into a fault.
#pragma once

#include <memory>

namespace diglot::interpreter {

// While one lives, this OS thread has a stack for signals, and overflows are caught.
class CatchOverflows {
 public:
  CatchOverflows();
  ~CatchOverflows();
  CatchOverflows(const CatchOverflows&) = delete;
  CatchOverflows& operator=(const CatchOverflows&) = delete;

 private:
  std::unique_ptr<char[]> signal_stack_;  // null: the thread had one
};

}  // namespace diglot::interpreter
