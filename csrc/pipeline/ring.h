// The ring: chunks pass through slots, copied in, computed and copied out at the same time. Twin of
// python/diglot/pipeline/ring.py, which does the same for any function of Python's.
//
// A slot has buffers on the device for a chunk of each array, and a stream in which its chunks are
// computed. All chunks come in in one stream, and go out in another: two copies in one direction at
// once would take the bus from those in the other. Host memory that is staged (host_array.h) passes
// through pinned buffers, of which there are more than slots: threads fill and empty them, each
// with a chunk of its own, ahead of the chunk that is fed and behind it.
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

// Begin and end, in seconds since the run began, of what happens to a chunk, in order: "read",
// "h2d", "compute", "d2h", "write". NaN where there is no such stage, or it is not timed.
using Times = std::array<double, 10>;
using Span = std::pair<double, double>;
constexpr Span kNotThere{std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::quiet_NaN()};

// Chunks of rows, as python/diglot/pipeline/planner.py cuts them.
struct Plan {
  int64_t rows;
  int64_t chunk_rows;  // of every chunk but the last, which has the rest
  int slots;           // that are used

  int64_t chunks() const { return (rows + chunk_rows - 1) / chunk_rows; }
  // The first row of a chunk, and the one after its last.
  std::pair<int64_t, int64_t> rows_of(int64_t chunk) const {
    const int64_t begin = chunk * chunk_rows;
    return {begin, std::min(begin + chunk_rows, rows)};
  }
  // Whether what the device does with a chunk is timed.
  bool is_timed(int64_t chunk) const {
    constexpr int64_t kFirst = 16, kEvery = 16;
    return chunk < kFirst || chunk % kEvery == 0 || chunk == chunks() - 1;
  }
};

// The state of a run that it shares with Python: four integers (stop, valid rows, chunk at work,
// 0).
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

// What one device is to do.
struct Job {
  Plan plan;
  std::vector<HostArray> arrays;
  // Starts the kernels on so many rows of a slot's buffers. From another thread where streams are
  // simulated, but never from two at once.
  std::function<void(cudaStream_t stream, int slot, int64_t rows)> launch;
  Control control;
  int copy_threads;                      // for each direction
  int device;                            // the current one of the thread that runs it
  cudaStream_t caller;                   // what it holds comes before
  std::function<void()> between_chunks;  // if there is one; what it throws ends the run
};

// One run of a job.
class Ring {
 public:
  explicit Ring(const Job& job);

  // Does all chunks, or as many as come before a stop or an error; returns their times. Throws
  // std::runtime_error, naming the chunk, of an exception of the standard's that a copy or the
  // kernels threw, and others as they are. Streams are idle then.
  std::vector<Times> run();

  // Pinned buffers of an array that is staged, and chunks at most that are fed but not out.
  static int64_t depth(int slots, int copy_threads) { return slots + copy_threads; }

 private:
  // A chunk on its way, with the begin and end of what happens to it.
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
  // When the pinned buffers of a chunk were filled; has them filled as far ahead as there are some.
  Span next_read(int64_t chunk);
  Span fill(int64_t chunk);
  void load(const Passage& passage);
  void compute(const Passage& passage);
  void store(const Passage& passage);
  // Takes results that are there off the device, and waits until so many chunks are out.
  void drain(int64_t chunks);
  // Throws what a launch for a chunk, or for one before, threw.
  void check_launch(int64_t chunk);
  // Copies a chunk's results from pinned buffers to their place.
  Span empty(const Passage& passage);
  // A chunk is out, as are all before it.
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
  std::vector<Passage> passages_;                // of the chunks under way
  std::unique_ptr<Workers> fillers_, emptiers_;  // where they are needed
  std::deque<std::future<Span>> filling_, emptying_;
  int64_t fed_ = 0;      // chunks
  int64_t emptied_ = 0;  // chunks that are off the device, perhaps still in pinned buffers
  int64_t drained_ = 0;  // chunks that are out
  std::mutex mutex_;
  std::exception_ptr launch_error_;  // the first one, which may come from another thread
  int64_t failed_launch_ = 0;        // its chunk
};

}  // namespace diglot::pipeline
