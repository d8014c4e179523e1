// Texts that live for ever, such as the names of variants that a planner composes.
#pragma once

#include <mutex>
#include <set>
#include <string>

#include "diglot/launch/fork_safe_mutex.h"

namespace diglot {

inline const char* kept_text(const std::string& text) {
  using Texts = std::set<std::string>;
  static Texts& texts = *new Texts;  // plans outlive static objects
  const std::lock_guard lock(fork_safe_mutex<Texts>());
  return texts.insert(text).first->c_str();
}

}  // namespace diglot
