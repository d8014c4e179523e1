// Streams and events without a device. Work waits in queues, one for each stream, until a host
// thread waits for some of it. Tasks are then done in a random order, which keeps only the order
// within each stream. If the ring lacks a wait, sooner or later an order shows it.
//
// The order is drawn from the seed DIGLOT_PIPELINE_SEED, a number (0).
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "diglot/launch/launch.h"

namespace diglot::pipeline {

class Simulation;
struct Mark;  // whether the work before an event is done

// A moment in a stream's order of work: a handle.
class Event {
 public:
  Event() = default;
  explicit Event(Simulation* simulation) : simulation_(simulation) {}
  // Whether the work before the event is done.
  bool is_done() const;
  // Blocks the host until the work before the event is done.
  void synchronize() const;

 private:
  friend class Stream;
  friend class Runtime;
  Simulation* simulation_ = nullptr;
  std::shared_ptr<Mark> mark_;
};

// A stream of work that runs in order: a handle.
class Stream {
 public:
  Stream() = default;
  Stream(Simulation* simulation, int number) : simulation_(simulation), number_(number) {}
  // Later work here waits for the work that the event marks now.
  void wait(const Event& event);
  // The event marks all work so far.
  void record(Event& event, bool is_timed);
  // function(stream) does its work here, later.
  void run(std::function<void(cudaStream_t)> function);
  // Blocks the host until all work here is done.
  void synchronize();

 private:
  Simulation* simulation_ = nullptr;
  int number_ = 0;
};

inline void copy(void* to, const void* from, std::size_t bytes, cudaStream_t) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// The streams and events of one run.
class Runtime {
 public:
  Runtime(int device, int slots, cudaStream_t caller, bool spins);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Stream loading, storing;
  std::vector<Stream> computing;  // one for each slot
  void wait(const Event& event) const { event.synchronize(); }
  Event make_event() { return Event(simulation_.get()); }
  void synchronize();
  // Seconds since the run began.
  double now() const;
  double seconds(const Event& event) const;

  // A thread has a scope while it uses the streams.
  struct Scope {
    explicit Scope(const Runtime&) {}
  };

 private:
  std::unique_ptr<Simulation> simulation_;
};

}  // namespace diglot::pipeline
