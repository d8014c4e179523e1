// A GPU's streams and events.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "diglot/launch.cuh"

namespace diglot::pipeline {

// A place in a stream's order of work: handles, of the runtime that made it.
class Event {
 public:
  Event() = default;
  Event(cudaEvent_t marker, cudaEvent_t clock) : marker_(marker), clock_(clock) {}
  // Whether the work before it is done.
  bool is_done() const {
    const cudaError_t status = cudaEventQuery(marker_);
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // no error, though it counts as one
      return false;
    }
    check(status, "asking for an event");
    return true;
  }
  // Waits, on the host, until it is.
  void synchronize() const { check(cudaEventSynchronize(marker_), "waiting for the device"); }
  cudaEvent_t marker() const { return marker_; }  // is waited for, and keeps no time
  cudaEvent_t clock() const { return clock_; }    // keeps the time

 private:
  cudaEvent_t marker_ = nullptr, clock_ = nullptr;
};

// Work in order: a handle. Where it has a watcher, another stream, the times of its events are kept
// there, as soon as they happen: an event that keeps the time holds up a stream of copies by some
// 2 us, which four for each chunk made 2 % of the bus's speed.
class Stream {
 public:
  Stream() = default;
  explicit Stream(cudaStream_t handle, cudaStream_t watcher = nullptr)
      : handle_(handle), watcher_(watcher) {}
  // What comes after this waits for what an event marks now.
  void wait(const Event& event) {
    check(cudaStreamWaitEvent(handle_, event.marker(), 0), "cudaStreamWaitEvent");
  }
  // The event marks what was enqueued so far.
  void record(Event& event) {
    check(cudaEventRecord(event.marker(), handle_), "cudaEventRecord");
    if (watcher_ != nullptr) Stream(watcher_).wait(event);
    check(cudaEventRecord(event.clock(), watcher_ != nullptr ? watcher_ : handle_),
          "cudaEventRecord");
  }
  // Has function(stream) enqueue its work here.
  template <typename Function>
  void run(const Function& function) {
    function(handle_);
  }
  // Waits, on the host, until all is done.
  void synchronize() { check(cudaStreamSynchronize(handle_), "waiting for the device"); }
  cudaStream_t handle() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr, watcher_ = nullptr;
};

// Copies between pinned and device memory, in a stream's order.
inline void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying");
}

// Streams and events are kept between runs: making them would take a good part of a small one.
struct KeptStreams {
  std::vector<cudaStream_t> streams;
  // Those whose waiters keep their cores, and those whose waiters sleep, which interrupt the host.
  std::vector<Event> spinning, sleeping;
};

// For one run. The device is the current one of the thread that makes it.
class Runtime {
 public:
  // What is enqueued begins once what `caller` holds is done.
  // A thread that waits for an event keeps its core, and goes on at once, or sleeps.
  Runtime(int device, int slots, cudaStream_t caller, bool spins);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Stream loading, storing;        // copies to the device, and from it
  std::vector<Stream> computing;  // of each slot
  Event make_event();
  // Waits, on the host, until all streams are idle.
  void synchronize();
  // Waits, on the host, for what an event marks.
  void wait(const Event& event) const;
  // Since the run began.
  double now() const;
  double seconds(const Event& event) const;  // once it has happened

  // What a thread is in while it uses the streams: the device is its current one, and no graph that
  // another thread captures meanwhile forbids its waits.
  class Scope {
   public:
    explicit Scope(const Runtime& runtime) {
      check(cudaSetDevice(runtime.device_), "cudaSetDevice");
    }

   private:
    BesideCaptures beside_;
  };

 private:
  int device_;
  bool spins_;
  std::unique_ptr<KeptStreams> kept_;
  std::size_t events_ = 0;  // that were given out
  Event origin_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace diglot::pipeline
