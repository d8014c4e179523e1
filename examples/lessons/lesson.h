// What the lessons' .cu files share: how a host function is called from Python (lesson.py).
#pragma once

#include <exception>
#include <string>

#include "diglot/launch/launch.h"

#define LESSON extern "C" __attribute__((visibility("default"))) const char*

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
