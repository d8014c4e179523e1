// Streams and events without a device. What is enqueued waits in queues, one for each stream, until
// a thread of the host waits for some of it; then tasks are done in a random order, of which only
// that of each stream is certain. Where a wait is missing, the order is sooner or
// later one in which it shows.
//
// The order is drawn from DIGLOT_PIPELINE_SEED, a number (0).
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "diglot/launch/launch.h"

namespace diglot::pipeline {

class Simulation;
struct Mark;  // what an event marks: done or not

// A place in a stream's order of work: a handle, of the runtime that made it.
class Event {
 public:
  Event() = default;
  explicit Event(Simulation* simulation) : simulation_(simulation) {}
  // Whether the work before it is done.
  bool is_done() const;
  // Waits, on the host, until it is.
  void synchronize() const;

 private:
  friend class Stream;
  friend class Runtime;
  Simulation* simulation_ = nullptr;
  std::shared_ptr<Mark> mark_;
};

// Work in order: a handle.
class Stream {
 public:
  Stream() = default;
  Stream(Simulation* simulation, int number) : simulation_(simulation), number_(number) {}
  // What comes after this waits for what an event marks now.
  void wait(const Event& event);
  // The event marks what was enqueued so far.
  void record(Event& event, bool is_timed);
  // Has function(stream) do its work here, later.
  void run(std::function<void(cudaStream_t)> function);
  // Waits, on the host, until all is done.
  void synchronize();

 private:
  Simulation* simulation_ = nullptr;
  int number_ = 0;
};

inline void copy(void* to, const void* from, std::size_t bytes, cudaStream_t) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// For one run.
class Runtime {
 public:
  Runtime(int device, int slots, cudaStream_t caller, bool spins);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Stream loading, storing;
  std::vector<Stream> computing;  // of each slot
  void wait(const Event& event) const { event.synchronize(); }
  Event make_event() { return Event(simulation_.get()); }
  void synchronize();
  // Since the run began.
  double now() const;
  double seconds(const Event& event) const;

  // What a thread is in while it uses the streams.
  struct Scope {
    explicit Scope(const Runtime&) {}
  };

 private:
  std::unique_ptr<Simulation> simulation_;
};

}  // namespace diglot::pipeline
