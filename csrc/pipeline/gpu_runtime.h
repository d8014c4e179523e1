// A GPU's streams and events.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "diglot/launch/launch.h"

namespace diglot::pipeline {

// A moment in a stream's order of work. It has two handles of CUDA. One keeps the time, which holds
// up a stream of copies for some 2 us.
class Event {
 public:
  Event() = default;
  Event(cudaEvent_t timed, cudaEvent_t untimed)
      : timed_(timed), untimed_(untimed), handle_(untimed) {}
  // Whether the work before the event is done.
  bool is_done() const {
    const cudaError_t status = cudaEventQuery(handle_);
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // clears the status, which is no error here
      return false;
    }
    check(status, "asking for an event");
    return true;
  }
  // Blocks the host until the work before the event is done.
  void synchronize() const { check(cudaEventSynchronize(handle_), "waiting for the device"); }
  cudaEvent_t handle() const { return handle_; }
  // Says whether the next record of the event is timed.
  void keep_time(bool keeps) { handle_ = keeps ? timed_ : untimed_; }

 private:
  cudaEvent_t timed_ = nullptr, untimed_ = nullptr, handle_ = nullptr;
};

// A stream of work that runs in order: a handle.
class Stream {
 public:
  Stream() = default;
  explicit Stream(cudaStream_t handle) : handle_(handle) {}
  // Later work here waits for the work that the event marks now.
  void wait(const Event& event) {
    check(cudaStreamWaitEvent(handle_, event.handle(), 0), "cudaStreamWaitEvent");
  }
  // The event marks all work so far.
  void record(Event& event, bool is_timed) {
    event.keep_time(is_timed);
    check(cudaEventRecord(event.handle(), handle_), "cudaEventRecord");
  }
  // function(stream) enqueues work here.
  template <typename Function>
  void run(const Function& function) {
    function(handle_);
  }
  // Blocks the host until all work here is done.
  void synchronize() { check(cudaStreamSynchronize(handle_), "waiting for the device"); }
  cudaStream_t handle() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

// Copies between pinned and device memory, in a stream's order.
inline void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying");
}

// Streams and events are kept between runs: making them would take a good part of a small run.
struct KeptStreams {
  std::vector<Stream> streams;
  // A thread that waits for a spinning event keeps its core. For a sleeping one it sleeps, and an
  // interrupt wakes it.
  std::vector<Event> spinning, sleeping;
};

// The streams and events of one run. The device must be current to the thread that makes it.
class Runtime {
 public:
  // All work begins after the work in `caller`. With `spins`, threads that wait for an event keep
  // their cores and go on at once; otherwise they sleep.
  Runtime(int device, int slots, cudaStream_t caller, bool spins);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Stream loading, storing;        // for copies to the device, and from it
  std::vector<Stream> computing;  // one for each slot
  Event make_event();
  // Blocks the host until all streams are idle.
  void synchronize();
  // Blocks the host until the work before the event is done.
  void wait(const Event& event) const;
  // Seconds since the run began.
  double now() const;
  double seconds(const Event& event) const;  // of a timed event

  // A thread has a scope while it uses the streams. The device is then current, and the thread may
  // wait while another thread captures a graph.
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
  std::size_t events_ = 0;  // given out so far
  Event origin_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace diglot::pipeline
