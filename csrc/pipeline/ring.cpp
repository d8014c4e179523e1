#include "pipeline/ring.h"

#include <stdexcept>
#include <thread>
#include <tuple>

namespace diglot::pipeline {

namespace {

bool any_staged(const std::vector<const HostArray*>& arrays) {
  return std::any_of(arrays.begin(), arrays.end(), [](auto* array) { return array->is_staged(); });
}

std::size_t bytes_of(const HostArray& array, int64_t rows) {
  return static_cast<std::size_t>(array.row_bytes * rows);
}

}  // namespace

Ring::Ring(const Job& job)
    : job_(job),
      plan_(job.plan),
      control_(job.control),
      runtime_(job.device, job.caller),
      depth_(depth(job.plan.slots, job.copy_threads)),
      passages_(std::min(depth_, job.plan.chunks())) {
  for (const HostArray& array : job.arrays) {
    (array.is_output ? outputs_ : inputs_).push_back(&array);
  }
  for (Passage& passage : passages_) {
    for (Event* event : {&passage.loading, &passage.loaded, &passage.computing, &passage.computed,
                         &passage.storing, &passage.stored}) {
      *event = runtime_.make_event();
    }
  }
  if (any_staged(inputs_)) fillers_ = std::make_unique<Workers>(job.copy_threads);
  if (any_staged(outputs_)) emptiers_ = std::make_unique<Workers>(job.copy_threads);
}

std::vector<Times> Ring::run() {
  std::thread draining([this] { drain(); });
  feed();
  draining.join();
  if (fillers_ != nullptr) fillers_->finish();
  const int64_t last = std::min(drained_, plan_.chunks() - 1);
  for (Stream* stream : {&runtime_.h2d, &runtime_.compute, &runtime_.d2h}) {
    guarded(last, [&] {
      const Runtime::Scope scope(runtime_);
      stream->synchronize();
    });
  }
  if (failed_chunk_ != kNone) {
    control_.set_chunk(failed_chunk_);
    throw std::runtime_error(error_);
  }
  return std::move(timeline_);
}

template <typename Work>
void Ring::guarded(const int64_t& chunk, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    if (failed_chunk_ == kNone) {
      const auto [begin, end] = plan_.rows_of(chunk);
      error_ = "chunk " + std::to_string(chunk) + " (rows " + std::to_string(begin) + " to " +
               std::to_string(end) + "): " + error.what();
      failed_chunk_ = chunk;
    }
    changed_.notify_all();
  }
}

bool Ring::has_failed(int64_t chunk) {
  const std::lock_guard lock(mutex_);
  return failed_chunk_ <= chunk;
}

bool Ring::wait_for_drain(int64_t chunks) {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return drained_ >= chunks || failed_chunk_ != kNone || control_.is_stopped(); });
  return drained_ >= chunks;
}

bool Ring::wait_for_feed(int64_t chunks) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return handed_ >= chunks || fed_all_; });
  return handed_ >= chunks;
}

void Ring::feed() {
  int64_t chunk = 0;
  guarded(chunk, [&] {
    const Runtime::Scope scope(runtime_);
    for (; chunk < plan_.chunks(); ++chunk) {
      if (control_.is_stopped() || has_failed(chunk)) break;
      control_.set_chunk(chunk);
      if (!feed_one(chunk)) break;
    }
  });
  const std::lock_guard lock(mutex_);
  fed_all_ = true;
  changed_.notify_all();
}

bool Ring::feed_one(int64_t chunk) {
  const Span read = next_read(chunk);
  // Its pinned buffers and events are free again, and not too much is under way.
  if (!wait_for_drain(chunk - depth_ + 1)) return false;
  Passage& passage = this->passage(chunk);
  passage.chunk = chunk;
  std::tie(passage.begin, passage.end) = plan_.rows_of(chunk);
  passage.read = read;
  const Passage* const before = chunk < plan_.slots ? nullptr : &this->passage(chunk - plan_.slots);

  if (before != nullptr) runtime_.h2d.wait(before->computed);  // it has read the slot's inputs
  runtime_.h2d.record(passage.loading);
  load(passage);
  runtime_.h2d.record(passage.loaded);

  runtime_.compute.wait(passage.loaded);
  if (before != nullptr) runtime_.compute.wait(before->stored);  // its outputs are copied
  runtime_.compute.record(passage.computing);
  compute(passage);
  runtime_.compute.record(passage.computed);

  runtime_.d2h.wait(passage.computed);
  runtime_.d2h.record(passage.storing);
  store(passage);
  runtime_.d2h.record(passage.stored);

  const std::lock_guard lock(mutex_);
  handed_ = chunk + 1;
  changed_.notify_all();
  return true;
}

Span Ring::next_read(int64_t chunk) {
  if (fillers_ == nullptr) return kNotThere;
  const int64_t end = std::min(chunk + depth_, plan_.chunks());
  for (int64_t ahead = chunk + static_cast<int64_t>(filling_.size()); ahead < end; ++ahead) {
    filling_.push_back(fillers_->submit([this, ahead] { return fill(ahead); }));
  }
  std::future<Span> filled = std::move(filling_.front());
  filling_.pop_front();
  return filled.get();
}

Span Ring::fill(int64_t chunk) {
  if (chunk >= depth_) {
    const Runtime::Scope scope(runtime_);
    passage(chunk - depth_).loaded.synchronize();  // of the chunk before: it was copied
  }
  const double began = runtime_.now();
  const auto [begin, end] = plan_.rows_of(chunk);
  for (const HostArray* array : inputs_) {
    if (array->is_staged()) array->read(begin, end, array->pinned[chunk % depth_]);
  }
  return {began, runtime_.now()};
}

// Enqueues the copies of the chunk's rows to the device.
void Ring::load(const Passage& passage) {
  for (const HostArray* array : inputs_) {
    char* const to = array->buffers[slot(passage)];
    const char* const from =
        array->is_staged() ? array->pinned[passage.chunk % depth_] : array->part(passage.begin);
    const std::size_t bytes = bytes_of(*array, passage.end - passage.begin);
    runtime_.h2d.run([=](cudaStream_t stream) { copy(to, from, bytes, stream); });
  }
}

void Ring::compute(const Passage& passage) {
  runtime_.compute.run([this, slot = slot(passage), chunk = passage.chunk,
                        rows = passage.end - passage.begin](cudaStream_t stream) {
    guarded(chunk, [&] { job_.launch(stream, slot, rows); });
  });
}

// Enqueues the copies of a chunk's results to where they go, or to pinned buffers.
void Ring::store(const Passage& passage) {
  for (const HostArray* array : outputs_) {
    char* const to =
        array->is_staged() ? array->pinned[passage.chunk % depth_] : array->part(passage.begin);
    const char* const from = array->buffers[slot(passage)];
    const std::size_t bytes = bytes_of(*array, passage.end - passage.begin);
    runtime_.d2h.run([=](cudaStream_t stream) { copy(to, from, bytes, stream); });
  }
}

void Ring::drain() {
  int64_t chunk = 0;
  guarded(chunk, [&] {
    const Runtime::Scope scope(runtime_);
    for (; chunk < plan_.chunks(); ++chunk) {
      if (!wait_for_feed(chunk + 1)) break;
      Passage& passage = this->passage(chunk);
      passage.stored.synchronize();
      if (has_failed(chunk)) break;
      if (emptiers_ == nullptr) {
        finish(passage);
      } else {
        emptiers_->submit([this, &passage] { empty(passage); });
      }
    }
  });
  if (emptiers_ != nullptr) emptiers_->finish();
}

void Ring::empty(Passage& passage) {
  guarded(passage.chunk, [&] {
    const double began = runtime_.now();
    for (const HostArray* array : outputs_) {
      if (array->is_staged()) {
        array->write(passage.begin, passage.end, array->pinned[passage.chunk % depth_]);
      }
    }
    passage.write = {began, runtime_.now()};
    finish(passage);
  });
}

void Ring::finish(Passage& passage) {
  const Runtime::Scope scope(runtime_);
  passage.times = times_of(passage);  // without the lock, which a kernel that fails takes
  const std::lock_guard lock(mutex_);
  passage.is_out = true;
  while (drained_ < handed_ && drained_ < failed_chunk_ && this->passage(drained_).is_out) {
    Passage& next = this->passage(drained_);
    timeline_.push_back(next.times);
    control_.set_valid_rows(next.end);
    next.is_out = false;
    ++drained_;
  }
  changed_.notify_all();
}

Times Ring::times_of(const Passage& passage) const {
  const auto span = [&](bool is_there, const Event& begin, const Event& end) {
    return is_there ? Span{runtime_.seconds(begin), runtime_.seconds(end)} : kNotThere;
  };
  const Span spans[] = {passage.read, span(!inputs_.empty(), passage.loading, passage.loaded),
                        span(true, passage.computing, passage.computed),
                        span(!outputs_.empty(), passage.storing, passage.stored), passage.write};
  Times times;
  for (std::size_t i = 0; i < std::size(spans); ++i) {
    times[2 * i] = spans[i].first;
    times[2 * i + 1] = spans[i].second;
  }
  return times;
}

}  // namespace diglot::pipeline
