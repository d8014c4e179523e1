// The ring: chunks pass through slots, copied in, computed and copied out at the same time. Twin of
// python/diglot/pipeline/ring.py, which does the same for any function of Python's.
//
// One thread feeds chunks to three streams, of which each waits for the others by events alone; a
// second one takes results off the device and says which slots are free again. Either waits for the
// other by a condition. A slot has a buffer for each array on the device, and pinned buffers for
// what is staged (host_array.h); a chunk's result belongs to its slot until it is out.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/copiers.h"
#include "pipeline/host_array.h"
#include "pipeline/runtime.h"

namespace diglot::pipeline {

// Begin and end, in seconds since the run began, of what happens to a chunk, in order: "read",
// "h2d", "compute", "d2h", "write". NaN where there is no such stage.
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
};

// What a run tells while it lasts, and is told: words (stop, valid rows, chunk at work, 0) that it
// shares with Python.
class Control {
 public:
  explicit Control(int64_t* words) : words_(words) {}
  bool is_stopped() const { return __atomic_load_n(words_, __ATOMIC_ACQUIRE) != 0; }
  void set_valid_rows(int64_t rows) { __atomic_store_n(words_ + 1, rows, __ATOMIC_RELEASE); }
  void set_chunk(int64_t chunk) { __atomic_store_n(words_ + 2, chunk, __ATOMIC_RELEASE); }

 private:
  int64_t* words_;
};

// What one device is to do.
struct Job {
  Plan plan;
  std::vector<HostArray> arrays;
  // Starts the kernels on so many rows of a slot's buffers. From another thread where streams are
  // simulated, but never from two at once.
  std::function<void(cudaStream_t stream, int slot, int64_t rows)> launch;
  Control control;
  int copy_threads;     // for each direction
  int device;           // the current one of the thread that runs it
  cudaStream_t caller;  // what it holds comes before
};

// One run of a job.
class Ring {
 public:
  explicit Ring(const Job& job);

  // Does all chunks, or as many as come before a stop or an error; returns their times. Throws
  // std::runtime_error, naming the chunk, what a copy or the kernels threw. Streams are idle then.
  std::vector<Times> run();

 private:
  // What a chunk has while it is on its way.
  struct Slot {
    int number = 0;
    Span read = kNotThere, write = kNotThere;
    Event loading, loaded;  // begin and end of each stage
    Event computing, computed;
    Event storing, stored;
  };

  // Of the chunk whose stages are all done.
  Times times(const Slot& slot) const;
  // Does a chunk's work; an error in one of the two threads ends the other.
  template <typename Work>
  void guarded(const int64_t& chunk, const Work& work);
  bool has_failed(int64_t chunk);
  // Waits until so many are out; false if they will not be: the run fails or is stopped.
  bool wait_for_drain(int64_t chunks);
  // Waits until so many are fed; false if they will not be.
  bool wait_for_feed(int64_t chunks);
  // Says that so many are fed, or out.
  void tell(int64_t& counter, int64_t chunks);

  // Enqueues chunk after chunk.
  void feed();
  void read(Slot& slot, int64_t begin, int64_t end);
  void load(Slot& slot, int64_t begin, int64_t end);
  void compute(Slot& slot, int64_t chunk, int64_t rows);
  void store(Slot& slot, int64_t begin, int64_t end);
  // Takes chunk after chunk off the device.
  void drain();
  void take_out(Slot& slot, int64_t begin, int64_t end);

  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  const Job& job_;
  const Plan& plan_;
  Control control_;
  Runtime runtime_;
  std::vector<const HostArray*> inputs_, outputs_;
  std::vector<Times> timeline_;
  std::vector<Slot> slots_;
  std::unique_ptr<Copiers> reading_, writing_;  // where they are needed
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t handed_ = 0;           // chunks that were fed
  int64_t drained_ = 0;          // chunks that are out
  bool fed_all_ = false;         // none will follow
  Span read_times_ = kNotThere;  // of the chunk that is fed
  Event loading_, loaded_;       // likewise
  std::string error_;
  int64_t failed_chunk_ = kNone;
};

}  // namespace diglot::pipeline
