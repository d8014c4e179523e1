#include "pipeline/ring.h"

#include <chrono>
#include <stdexcept>
#include <tuple>

namespace diglot::pipeline {

namespace {

bool any_staged(const std::vector<const HostArray*>& arrays) {
  return std::any_of(arrays.begin(), arrays.end(), [](auto* array) { return array->is_staged(); });
}
bool any_staged(const std::vector<HostArray>& arrays) {
  return std::any_of(arrays.begin(), arrays.end(), [](auto& array) { return array.is_staged(); });
}

std::size_t bytes_of(const HostArray& array, int64_t rows) {
  return static_cast<std::size_t>(array.row_bytes * rows);
}

bool is_ready(const std::future<Span>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

Ring::Ring(const Job& job)
    : job_(job),
      plan_(job.plan),
      control_(job.control),
      runtime_(job.device, job.plan.slots, job.caller, !any_staged(job.arrays)),
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
  const auto threads = static_cast<int>(std::min<int64_t>(job.copy_threads, plan_.chunks()));
  if (any_staged(inputs_)) fillers_ = std::make_unique<Workers>(threads);
  if (any_staged(outputs_)) emptiers_ = std::make_unique<Workers>(threads);
}

std::vector<Times> Ring::run() {
  const Runtime::Scope scope(runtime_);
  int64_t failed = 0;
  std::exception_ptr error;
  try {
    feed_all();
  } catch (...) {
    error = std::current_exception();
    failed = control_.chunk();
    try {
      // The chunks fed before the failed one are good: takes them off the device, and no others.
      fed_ = std::min(failed, fed_);
      if (drained_ < failed) drain(fed_);
    } catch (...) {
    }
  }
  for (std::unique_ptr<Workers>* workers : {&fillers_, &emptiers_}) {
    if (*workers != nullptr) (*workers)->finish();
  }
  // Each fed chunk was waited for, with all of its work.
  if (error == nullptr) return std::move(timeline_);
  try {
    runtime_.synchronize();
  } catch (...) {
  }
  control_.set_chunk(failed);
  const auto [begin, end] = plan_.rows_of(failed);
  const std::string where = "chunk " + std::to_string(failed) + " (rows " + std::to_string(begin) +
                            " to " + std::to_string(end) + "): ";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& what) {
    throw std::runtime_error(where + what.what());
  }
}

void Ring::feed_all() {
  for (int64_t chunk = 0; chunk < plan_.chunks() && !control_.is_stopped(); ++chunk) {
    control_.set_chunk(chunk);
    if (job_.between_chunks) job_.between_chunks();
    feed(chunk);
    fed_ = chunk + 1;
    check_launch(chunk);
  }
  drain(fed_);
}

void Ring::feed(int64_t chunk) {
  const Span read = next_read(chunk);
  drain(chunk - depth_ + 1);  // frees pinned buffers and events for this chunk
  Passage& passage = this->passage(chunk);
  passage.chunk = chunk;
  std::tie(passage.begin, passage.end) = plan_.rows_of(chunk);
  passage.read = read;
  const bool is_timed = plan_.is_timed(chunk);

  Stream &loading = runtime_.loading, &storing = runtime_.storing;
  Stream& computing = runtime_.computing[slot(passage)];
  if (chunk >= plan_.slots) loading.wait(this->passage(chunk - plan_.slots).stored);
  if (is_timed) loading.record(passage.loading, true);
  load(passage);
  loading.record(passage.loaded, is_timed);

  computing.wait(passage.loaded);
  if (is_timed) computing.record(passage.computing, true);
  compute(passage);
  computing.record(passage.computed, is_timed);

  storing.wait(passage.computed);
  if (is_timed) storing.record(passage.storing, true);
  store(passage);
  storing.record(passage.stored, is_timed);
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
    passage(chunk).loaded.synchronize();  // the buffers' earlier chunk
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
    runtime_.loading.run([=](cudaStream_t stream) { copy(to, from, bytes, stream); });
  }
}

void Ring::compute(const Passage& passage) {
  const int64_t rows = passage.end - passage.begin;
  runtime_.computing[slot(passage)].run(
      [this, slot = slot(passage), chunk = passage.chunk, rows](cudaStream_t stream) {
        try {
          job_.launch(stream, slot, rows);
        } catch (...) {
          const std::lock_guard lock(mutex_);
          if (launch_error_ != nullptr && failed_launch_ < chunk) return;
          launch_error_ = std::current_exception();
          failed_launch_ = chunk;
        }
      });
}

void Ring::check_launch(int64_t chunk) {
  const std::lock_guard lock(mutex_);
  if (launch_error_ == nullptr || failed_launch_ > chunk) return;
  control_.set_chunk(failed_launch_);
  std::rethrow_exception(launch_error_);
}

// Enqueues the copies of a chunk's results to their place, or to pinned buffers.
void Ring::store(const Passage& passage) {
  for (const HostArray* array : outputs_) {
    char* const to =
        array->is_staged() ? array->pinned[passage.chunk % depth_] : array->part(passage.begin);
    const char* const from = array->buffers[slot(passage)];
    const std::size_t bytes = bytes_of(*array, passage.end - passage.begin);
    runtime_.storing.run([=](cudaStream_t stream) { copy(to, from, bytes, stream); });
  }
}

void Ring::drain(int64_t chunks) {
  for (; emptied_ < fed_ && (emptied_ < chunks || passage(emptied_).stored.is_done()); ++emptied_) {
    Passage& passage = this->passage(emptied_);
    runtime_.wait(passage.stored);
    check_launch(emptied_);
    if (emptiers_ == nullptr) {
      finish(passage);
    } else {
      emptying_.push_back(emptiers_->submit([this, &passage] { return empty(passage); }));
    }
  }
  while (!emptying_.empty() && (drained_ < chunks || is_ready(emptying_.front()))) {
    std::future<Span> emptied = std::move(emptying_.front());
    emptying_.pop_front();
    Passage& passage = this->passage(drained_);
    try {
      passage.write = emptied.get();
    } catch (...) {
      control_.set_chunk(drained_);
      throw;
    }
    finish(passage);
  }
}

Span Ring::empty(const Passage& passage) {
  const double began = runtime_.now();
  for (const HostArray* array : outputs_) {
    if (array->is_staged()) {
      array->write(passage.begin, passage.end, array->pinned[passage.chunk % depth_]);
    }
  }
  return {began, runtime_.now()};
}

void Ring::finish(const Passage& passage) {
  timeline_.push_back(times(passage));
  control_.set_valid_rows(passage.end);
  ++drained_;
}

Times Ring::times(const Passage& passage) const {
  const bool is_timed = plan_.is_timed(passage.chunk);
  const auto span = [&](bool is_there, const Event& begin, const Event& end) {
    if (!is_there || !is_timed) return kNotThere;
    return Span{runtime_.seconds(begin), runtime_.seconds(end)};
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
