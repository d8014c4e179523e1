#if !defined(DIGLOT_INTERPRETER)

#include "pipeline/gpu_runtime.h"

#include <map>
#include <mutex>
#include <thread>

namespace diglot::pipeline {

namespace {

struct Shelf {
  std::mutex mutex;
  std::multimap<int, std::unique_ptr<KeptStreams>> of_device;
};

// Never destroyed: when a process ends, the driver may go first.
Shelf& shelf() {
  static Shelf& instance = *new Shelf;
  return instance;
}

std::unique_ptr<KeptStreams> take(int device) {
  {
    Shelf& from = shelf();
    const std::lock_guard lock(from.mutex);
    const auto found = from.of_device.find(device);
    if (found != from.of_device.end()) {
      auto streams = std::move(found->second);
      from.of_device.erase(found);
      return streams;
    }
  }
  return std::make_unique<KeptStreams>();
}

}  // namespace

Runtime::Runtime(int device, int slots, cudaStream_t caller, bool spins)
    : device_(device), spins_(spins) {
  const RelaxedCaptureScope scope;
  kept_ = take(device);
  const std::size_t count = 2 + static_cast<std::size_t>(slots);
  while (kept_->streams.size() < count) {
    cudaStream_t handle = nullptr;
    check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "making a stream");
    kept_->streams.emplace_back(handle);
  }
  loading = kept_->streams[0];
  storing = kept_->streams[1];
  computing.assign(kept_->streams.begin() + 2, kept_->streams.begin() + count);
  // The stream is idle: the event marks this moment.
  origin_ = make_event();
  loading.record(origin_, true);
  began_ = std::chrono::steady_clock::now();
  Event before = make_event();
  Stream(caller).record(before, false);
  loading.wait(before);  // all other streams wait for loaded chunks
}

Runtime::~Runtime() {
  Shelf& to = shelf();
  const std::lock_guard lock(to.mutex);
  to.of_device.emplace(device_, std::move(kept_));
}

void Runtime::synchronize() {
  for (Stream* stream : {&loading, &storing}) stream->synchronize();
  for (Stream& stream : computing) stream.synchronize();
}

Event Runtime::make_event() {
  std::vector<Event>& events = spins_ ? kept_->spinning : kept_->sleeping;
  if (events_ == events.size()) {
    const RelaxedCaptureScope scope;
    cudaEvent_t timed = nullptr, untimed = nullptr;
    const unsigned int flags = spins_ ? cudaEventDefault : cudaEventBlockingSync;
    check(cudaEventCreateWithFlags(&timed, flags), "making an event");
    check(cudaEventCreateWithFlags(&untimed, flags | cudaEventDisableTiming), "making an event");
    events.emplace_back(timed, untimed);
  }
  return events[events_++];
}

void Runtime::wait(const Event& event) const {
  while (spins_ && !event.is_done()) std::this_thread::yield();
  if (!spins_) event.synchronize();
}

double Runtime::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

double Runtime::seconds(const Event& event) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, origin_.handle(), event.handle()),
        "cudaEventElapsedTime");
  return milliseconds / 1e3;
}

}  // namespace diglot::pipeline

#endif
