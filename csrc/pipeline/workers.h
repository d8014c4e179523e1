// Threads that copy chunks, one thread a chunk. A single thread cannot use all of memory's
// bandwidth.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace diglot::pipeline {

class Workers {
 public:
  // Starts `threads` threads, or fewer if the system starts no more. Without any, submit() does the
  // work.
  explicit Workers(int threads);
  ~Workers() { finish(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // A thread calls function(); the future gets its result or exception.
  template <typename Function>
  auto submit(Function function) {
    using Result = decltype(function());
    auto task = std::make_shared<std::packaged_task<Result()>>(std::move(function));
    auto result = task->get_future();
    add([task] { (*task)(); });
    return result;
  }
  // Waits until no thread works, and ends them. Tasks that have not begun are dropped, and their
  // futures say so.
  void finish();

 private:
  void add(std::function<void()> task);
  void work();

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_over_ = false;
};

}  // namespace diglot::pipeline
