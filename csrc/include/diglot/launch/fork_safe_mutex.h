// A mutex that a forking thread holds, so that the child process, which has none of its parent's
// other threads, finds it unlocked. Never destroyed.
#pragma once

#include <pthread.h>

#include <mutex>

namespace diglot {

// One for each Owner.
template <typename Owner>
std::mutex& fork_safe_mutex() {
  static std::mutex& instance = []() -> std::mutex& {
    static std::mutex& made = *new std::mutex;
    pthread_atfork([] { made.lock(); }, [] { made.unlock(); }, [] { made.unlock(); });
    return made;
  }();
  return instance;
}

}  // namespace diglot
