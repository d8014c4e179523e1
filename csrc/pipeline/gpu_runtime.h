// A GPU's streams and events.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "diglot/launch/launch.h"

namespace diglot::pipeline {

// A place in a stream's order of work: handles, of the runtime that made it. One keeps the time,
// which holds up a stream of copies for some 2 us.
class Event {
 public:
  Event() = default;
  Event(cudaEvent_t timed, cudaEvent_t untimed)
      : timed_(timed), untimed_(untimed), handle_(untimed) {}
  // Whether the work before it is done.
  bool is_done() const {
    const cudaError_t status = cudaEventQuery(handle_);
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // no error, though it counts as one
      return false;
    }
    check(status, "asking for an event");
    return true;
  }
  // Waits, on the host, until it is.
  void synchronize() const { check(cudaEventSynchronize(handle_), "waiting for the device"); }
  cudaEvent_t handle() const { return handle_; }
  // What it marks next is, or is not, to be timed.
  void keep_time(bool keeps) { handle_ = keeps ? timed_ : untimed_; }

 private:
  cudaEvent_t timed_ = nullptr, untimed_ = nullptr, handle_ = nullptr;
};

// Work in order: a handle.
class Stream {
 public:
  Stream() = default;
  explicit Stream(cudaStream_t handle) : handle_(handle) {}
  // What comes after this waits for what an event marks now.
  void wait(const Event& event) {
    check(cudaStreamWaitEvent(handle_, event.handle(), 0), "cudaStreamWaitEvent");
  }
  // The event marks what was enqueued so far.
  void record(Event& event, bool is_timed) {
    event.keep_time(is_timed);
    check(cudaEventRecord(event.handle(), handle_), "cudaEventRecord");
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
  cudaStream_t handle_ = nullptr;
};

// Copies between pinned and device memory, in a stream's order.
inline void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying");
}

// Streams and events are kept between runs: making them would take a good part of a small one.
struct KeptStreams {
  std::vector<Stream> streams;
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
  double seconds(const Event& event) const;  // of one that is timed

  // What a thread is in while it uses the streams: the device is its current one, and no graph that
  // another thread captures meanwhile forbids its waits.
  class Scope {
   public:
    explicit Scope(const Runtime& runtime) {
      check(cudaSetDevice(runtime.device_), "cudaSetDevice");
    }

   private:
    RelaxedCaptureScope beside_;
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
