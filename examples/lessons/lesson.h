// What the lessons' .cu files share: how a host function is called from Python (lesson.py), and
// which SM a thread is on.
#pragma once

#include <exception>
#include <string>

#include "diglot/launch/launch.h"

#define LESSON extern "C" __attribute__((visibility("default"))) const char*

__device__ inline unsigned multiprocessor_id() {
#if defined(__CUDA_ARCH__)
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
#else
  return 0;  // the interpreter models none that a kernel could see
#endif
}

// Runs a function; what it throws is returned as text, which Python raises, else null.
template <typename Function>
const char* guarded(const Function& function) {
  static thread_local std::string message;
  try {
    function();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}
