// The ring: chunks pass through slots, copied in, computed and copied out at the same time. Twin of
// python/diglot/pipeline/ring.py, which does the same for any Python function.
//
// A slot has device buffers for a chunk of each array, and a stream that computes its chunks. All
// chunks come in through one stream and go out through another: two copies in one direction at once
// would take the bus from the other direction.
//
// Staged host memory (host_array.h) passes through pinned buffers. There are more of these than
// slots. Threads fill them ahead of the ring and empty them behind it, each with a chunk of its
// own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/host_array.h"
#include "pipeline/runtime.h"
#include "pipeline/workers.h"

namespace diglot::pipeline {

// Begin and end of each stage of a chunk, in seconds since the run began: "read", "h2d", "compute",
// "d2h", "write". NaN for a stage that does not exist or is not timed.
using Times = std::array<double, 10>;
using Span = std::pair<double, double>;
constexpr Span kNotThere{std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::quiet_NaN()};

// Chunks of rows, as python/diglot/pipeline/planner.py cuts them.
struct Plan {
  int64_t rows;
  int64_t chunk_rows;  // rows of a chunk; the last may have fewer
  int slots;           // slots in use

  int64_t chunks() const { return (rows + chunk_rows - 1) / chunk_rows; }
  // The first row of a chunk, and the one after its last.
  std::pair<int64_t, int64_t> rows_of(int64_t chunk) const {
    const int64_t begin = chunk * chunk_rows;
    return {begin, std::min(begin + chunk_rows, rows)};
  }
  // Whether the device's work on a chunk is timed.
  bool is_timed(int64_t chunk) const {
    constexpr int64_t kFirst = 6, kEvery = 16;
    return chunk < kFirst || chunk % kEvery == 0 || chunk == chunks() - 1;
  }
};

// The state that a run shares with Python: four integers (stop, valid rows, chunk at work, 0).
class Control {
 public:
  explicit Control(int64_t* state) : state_(state) {}
  bool is_stopped() const { return __atomic_load_n(state_, __ATOMIC_ACQUIRE) != 0; }
  void set_valid_rows(int64_t rows) { __atomic_store_n(state_ + 1, rows, __ATOMIC_RELEASE); }
  int64_t chunk() const { return __atomic_load_n(state_ + 2, __ATOMIC_ACQUIRE); }
  void set_chunk(int64_t chunk) { __atomic_store_n(state_ + 2, chunk, __ATOMIC_RELEASE); }

 private:
  int64_t* state_;
};

// The work of one device.
struct Job {
  Plan plan;
  std::vector<HostArray> arrays;
  // Starts the kernels on `rows` rows of a slot's buffers. Simulated streams may call it from
  // another thread, but never from two at once.
  std::function<void(cudaStream_t stream, int slot, int64_t rows)> launch;
  Control control;
  int copy_threads;                      // for each direction
  int device;                            // must be current to the thread that runs the job
  cudaStream_t caller;                   // its work comes first
  std::function<void()> between_chunks;  // optional; an exception from it ends the run
};

// One run of a job.
class Ring {
 public:
  explicit Ring(const Job& job);

  // Does all chunks, or those before a stop or an error, and returns their times. A standard
  // exception of a copy or of the kernels becomes a std::runtime_error that names the chunk. Other
  // exceptions pass unchanged. Streams are idle afterwards.
  std::vector<Times> run();

  // How many pinned buffers a staged array has: the most chunks that are fed but not out.
  static int64_t depth(int slots, int copy_threads) { return slots + copy_threads; }

 private:
  // A chunk on its way, with the begin and end of its stages.
  struct Passage {
    int64_t chunk = 0, begin = 0, end = 0;
    Span read = kNotThere, write = kNotThere;
    Event loading, loaded;
    Event computing, computed;
    Event storing, stored;
  };

  // Enqueues chunk after chunk.
  void feed_all();
  void feed(int64_t chunk);
  // The times in which a chunk's pinned buffers were filled. First starts to fill as far ahead as
  // there are free buffers.
  Span next_read(int64_t chunk);
  Span fill(int64_t chunk);
  void load(const Passage& passage);
  void compute(const Passage& passage);
  void store(const Passage& passage);
  // Takes finished results off the device, and waits until `chunks` chunks are out.
  void drain(int64_t chunks);
  // Throws the exception of a launch for this chunk or an earlier one.
  void check_launch(int64_t chunk);
  // Copies a chunk's results from pinned buffers to their place.
  Span empty(const Passage& passage);
  // Notes that a chunk is out; all before it are out too.
  void finish(const Passage& passage);
  Times times(const Passage& passage) const;

  Passage& passage(int64_t chunk) { return passages_[chunk % depth_]; }
  int slot(const Passage& passage) const { return static_cast<int>(passage.chunk % plan_.slots); }

  const Job& job_;
  const Plan& plan_;
  Control control_;
  Runtime runtime_;
  std::vector<const HostArray*> inputs_, outputs_;
  std::vector<Times> timeline_;
  const int64_t depth_;
  std::vector<Passage> passages_;                // the chunks under way
  std::unique_ptr<Workers> fillers_, emptiers_;  // null where nothing is staged
  std::deque<std::future<Span>> filling_, emptying_;
  int64_t fed_ = 0;      // chunks enqueued
  int64_t emptied_ = 0;  // chunks that are off the device, but perhaps still in pinned buffers
  int64_t drained_ = 0;  // chunks that are out
  std::mutex mutex_;
  std::exception_ptr launch_error_;  // the first one; it may come from another thread
  int64_t failed_launch_ = 0;        // its chunk
};

}  // namespace diglot::pipeline
