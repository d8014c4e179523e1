#include "pipeline/ring.h"

#include <stdexcept>
#include <thread>

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
    : job_(job), plan_(job.plan), control_(job.control), runtime_(job.device, job.caller) {
  for (const HostArray& array : job.arrays) {
    (array.is_output ? outputs_ : inputs_).push_back(&array);
  }
  for (int number = 0; number < plan_.slots; ++number) {
    Slot slot;
    slot.number = number;
    for (Event* event : {&slot.loading, &slot.loaded, &slot.computing, &slot.computed,
                         &slot.storing, &slot.stored}) {
      *event = runtime_.make_event();
    }
    slots_.push_back(slot);
  }
  loading_ = runtime_.make_event();
  loaded_ = runtime_.make_event();
  if (any_staged(inputs_)) reading_ = std::make_unique<Copiers>(job.copy_threads);
  if (any_staged(outputs_)) writing_ = std::make_unique<Copiers>(job.copy_threads);
}

std::vector<Times> Ring::run() {
  std::thread draining([this] { drain(); });
  feed();
  draining.join();
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

void Ring::tell(int64_t& counter, int64_t chunks) {
  {
    const std::lock_guard lock(mutex_);
    counter = chunks;
  }
  changed_.notify_all();
}

void Ring::feed() {
  int64_t chunk = 0;
  guarded(chunk, [&] {
    const Runtime::Scope scope(runtime_);
    for (; chunk < plan_.chunks(); ++chunk) {
      if (control_.is_stopped() || has_failed(chunk)) break;
      control_.set_chunk(chunk);
      Slot& slot = slots_[chunk % plan_.slots];
      const auto [begin, end] = plan_.rows_of(chunk);
      read(slot, begin, end);

      runtime_.h2d.wait(slot.computed);  // of the chunk before in the slot
      runtime_.h2d.record(loading_);
      load(slot, begin, end);
      runtime_.h2d.record(loaded_);

      // Its outputs, their pinned buffers and its events are free again.
      if (!wait_for_drain(chunk - plan_.slots + 1)) break;
      slot.read = read_times_;
      std::swap(slot.loading, loading_);
      std::swap(slot.loaded, loaded_);
      runtime_.compute.wait(slot.loaded);
      runtime_.compute.record(slot.computing);
      compute(slot, chunk, end - begin);
      runtime_.compute.record(slot.computed);

      runtime_.d2h.wait(slot.computed);
      runtime_.d2h.record(slot.storing);
      store(slot, begin, end);
      runtime_.d2h.record(slot.stored);
      tell(handed_, chunk + 1);
    }
  });
  const std::lock_guard lock(mutex_);
  fed_all_ = true;
  changed_.notify_all();
}

// Fills the pinned buffers of the inputs that are staged.
void Ring::read(Slot& slot, int64_t begin, int64_t end) {
  if (reading_ == nullptr) return;
  slot.loaded.synchronize();  // of the chunk before: its buffers were copied from
  const double began = runtime_.now();
  for (const HostArray* array : inputs_) {
    if (array->is_staged()) array->read(begin, end, array->pinned[slot.number], *reading_);
  }
  read_times_ = {began, runtime_.now()};
}

// Enqueues the copies of the chunk's rows to the device.
void Ring::load(Slot& slot, int64_t begin, int64_t end) {
  for (const HostArray* array : inputs_) {
    char* const to = array->buffers[slot.number];
    const char* const from = array->is_staged() ? array->pinned[slot.number] : array->part(begin);
    runtime_.h2d.run([to, from, bytes = bytes_of(*array, end - begin)](cudaStream_t stream) {
      copy(to, from, bytes, stream);
    });
  }
}

void Ring::compute(Slot& slot, int64_t chunk, int64_t rows) {
  runtime_.compute.run([this, number = slot.number, chunk, rows](cudaStream_t stream) {
    guarded(chunk, [&] { job_.launch(stream, number, rows); });
  });
}

// Enqueues the copies of a chunk's results to where they go, or to pinned buffers.
void Ring::store(Slot& slot, int64_t begin, int64_t end) {
  for (const HostArray* array : outputs_) {
    char* const to = array->is_staged() ? array->pinned[slot.number] : array->part(begin);
    const char* const from = array->buffers[slot.number];
    runtime_.d2h.run([to, from, bytes = bytes_of(*array, end - begin)](cudaStream_t stream) {
      copy(to, from, bytes, stream);
    });
  }
}

void Ring::drain() {
  int64_t chunk = 0;
  guarded(chunk, [&] {
    const Runtime::Scope scope(runtime_);
    for (; chunk < plan_.chunks(); ++chunk) {
      if (!wait_for_feed(chunk + 1)) break;
      Slot& slot = slots_[chunk % plan_.slots];
      const auto [begin, end] = plan_.rows_of(chunk);
      slot.stored.synchronize();
      if (has_failed(chunk)) break;
      take_out(slot, begin, end);
      timeline_.push_back(times(slot));
      control_.set_valid_rows(end);
      tell(drained_, chunk + 1);
    }
  });
}

// Copies a chunk's results from pinned buffers to where they go.
void Ring::take_out(Slot& slot, int64_t begin, int64_t end) {
  if (writing_ == nullptr) return;
  const double began = runtime_.now();
  for (const HostArray* array : outputs_) {
    if (array->is_staged()) array->write(begin, end, array->pinned[slot.number], *writing_);
  }
  slot.write = {began, runtime_.now()};
}

Times Ring::times(const Slot& slot) const {
  const auto span = [&](bool is_there, const Event& begin, const Event& end) {
    return is_there ? Span{runtime_.seconds(begin), runtime_.seconds(end)} : kNotThere;
  };
  const Span spans[] = {slot.read, span(!inputs_.empty(), slot.loading, slot.loaded),
                        span(true, slot.computing, slot.computed),
                        span(!outputs_.empty(), slot.storing, slot.stored), slot.write};
  Times times;
  for (std::size_t i = 0; i < std::size(spans); ++i) {
    times[2 * i] = spans[i].first;
    times[2 * i + 1] = spans[i].second;
  }
  return times;
}

}  // namespace diglot::pipeline
