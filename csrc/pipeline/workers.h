// Threads that do one thing each: copy a chunk. One of them does not do what memory can.
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
  // So many, or fewer where the system starts no more; without any, submit() does the work.
  explicit Workers(int threads);
  ~Workers() { finish(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Has a thread call function(); the future has what it returned or threw.
  template <typename Function>
  auto submit(Function function) {
    using Result = decltype(function());
    auto task = std::make_shared<std::packaged_task<Result()>>(std::move(function));
    auto result = task->get_future();
    add([task] { (*task)(); });
    return result;
  }
  // Waits until no thread works, and ends them. What was not begun is left out: its futures say so.
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
