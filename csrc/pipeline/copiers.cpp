#include "pipeline/copiers.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace diglot::pipeline {

namespace {

// Worth a turn of a thread; small enough that all end at about the same time.
constexpr int64_t kPartBytes = int64_t{1} << 18;

}  // namespace

Copiers::Copiers(int threads) {
  for (int i = 1; i < threads; ++i) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      break;
    }
  }
}

Copiers::~Copiers() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Copiers::each(int64_t size, const Function& function) {
  if (size <= kPartBytes || threads_.empty()) {
    if (size > 0) function(0, size);
    return;
  }
  std::unique_lock lock(mutex_);
  function_ = &function;
  size_ = size;
  next_ = 0;
  changed_.notify_all();
  take_parts(lock);
  changed_.wait(lock, [&] { return under_way_ == 0; });
  function_ = nullptr;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Copiers::work() {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    take_parts(lock);
    changed_.wait(lock, [&] { return is_over_ || (function_ != nullptr && next_ < size_); });
  }
}

void Copiers::take_parts(std::unique_lock<std::mutex>& lock) {
  while (function_ != nullptr && next_ < size_) {
    const int64_t first = next_;
    const int64_t count = std::min(kPartBytes, size_ - first);
    next_ += count;
    ++under_way_;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*function_)(first, count);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr) {
      if (error_ == nullptr) error_ = error;
      next_ = size_;
    }
    if (--under_way_ == 0 && next_ >= size_) changed_.notify_all();
  }
}

}  // namespace diglot::pipeline
