// Threads that copy parts of memory or of a file together: one of them does not do what memory and
// the page cache can.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace diglot::pipeline {

class Copiers {
 public:
  // So many, of which the thread that calls each() is one; fewer where the system starts no more.
  explicit Copiers(int threads);
  ~Copiers();
  Copiers(const Copiers&) = delete;
  Copiers& operator=(const Copiers&) = delete;

  // Calls function(first, count) for parts of [0, size), several at once, and waits for all. Throws
  // the first exception that one of them threw; parts that had not begun are left out then.
  using Function = std::function<void(int64_t first, int64_t count)>;
  void each(int64_t size, const Function& function);

 private:
  void work();
  // Does part after part of what is set, with `lock` held in between.
  void take_parts(std::unique_lock<std::mutex>& lock);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const Function* function_ = nullptr;
  int64_t size_ = 0;
  int64_t next_ = 0;   // where the next part begins
  int under_way_ = 0;  // parts that have begun and not ended
  bool is_over_ = false;
  std::exception_ptr error_;
};

}  // namespace diglot::pipeline
