// A mutex that works in a child process after a fork. The forking thread holds it meanwhile, so the
// child, which has none of the other threads, finds it unlocked. It is never destroyed.
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
