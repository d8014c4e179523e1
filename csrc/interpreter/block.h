// One block while it runs: its threads and what they wait for.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "interpreter/detector.h"
#include "interpreter/fiber.h"
#include "interpreter/interpreter.h"
#include "interpreter/races.h"
#include "interpreter/watch.h"

namespace diglot::interpreter {

// What blocks share that run as a cluster, one cluster after the other.
struct Cluster {
  std::atomic<unsigned> arrived{0};
  std::atomic<unsigned> generation{0};                      // of the barrier
  std::atomic<unsigned> ended{0};                           // blocks, of all clusters
  std::atomic<const char*> shared[kMaxClusterBlocks] = {};  // where each has its shared memory
  std::shared_ptr<Detector> detector;                       // of the cluster that runs
  std::uint32_t number = 0;                                 // of that
};

// What all blocks of a launch share.
struct Grid {
  Grid(const Launch& launch, const Kernel& kernel, const std::vector<Range>* arguments);
  ~Grid();

  const Launch& launch;
  const Kernel& kernel;
  const std::vector<Range>* arguments;
  std::atomic<std::uint64_t> progress{0};  // grows with everything that a waiting thread may see
  std::atomic<std::int64_t> busy{0};       // blocks of which a thread does more than wait
  std::atomic<bool> is_over{false};        // a thread has failed
  std::unique_ptr<const Watch> watch;      // of the arguments, if they are watched
  std::unique_ptr<Launched> launched;      // null if races are not looked for
  Cluster cluster;
  std::mutex mutex;
  std::string failure;

  void fail(const std::string& what);
  // The one of a block's cluster; null if races are not looked for.
  std::shared_ptr<Detector> detector_of(const Index3& block);
};

enum class State { kNew, kReady, kAtBarrier, kAtWarp, kDone };

struct Thread {
  Index3 index;
  int linear = 0;
  State state = State::kNew;
  Context context;
  std::unique_ptr<Stack> stack;
  const char* waits_in = "";
  Site site;
  int looks = 0;                  // at memory that others may change, since it changed any itself
  int turns = 0;                  // looks since it was resumed
  const void* deepest = nullptr;  // frame that has looked
  Lanes lanes;                    // what the last exchange gave
  Votes votes;                    // what the last barrier gave

  // More looks than a thread needs that does not wait.
  static constexpr int kIdle = 64;
  bool is_idle() const { return looks >= kIdle; }
  int lane() const { return linear % kWarp; }
  int warp() const { return linear / kWarp; }
};

class Block {
 public:
  using Clock = std::chrono::steady_clock;

  Block(Grid& grid, Index3 index, std::uint64_t seed);
  ~Block();

  // Runs all threads to their end, or until the grid is over.
  void run();

  Votes barrier(bool predicate, const char* what, Place place);
  void cluster_barrier(Place place);
  Lanes exchange(std::uint32_t mask, std::uint64_t value, const char* what, Place place);
  std::uint32_t active_mask() const;
  void poll(const Site& site);
  void look(const Site& site);
  [[noreturn]] void fail(const std::string& what, const Site& site);
  // An access, which counts: a thread that never waits is ended now and then if it must be.
  void tick(const Site& site) {
    constexpr std::uint32_t kTicks = 1 << 16;
    if (++ticks_ % kTicks == 0) check_time(site);
  }

  // An access that may race.
  void note(const void* address, std::size_t bytes, Access access, Scope scope, const Site& site);
  Detector* detector() { return detector_.get(); }
  // Of the thread's clock, in the cluster.
  int component() const { return component(*thread_); }

  bool is_running() const { return thread_ != nullptr; }
  Thread& thread() { return *thread_; }
  Grid& grid() { return grid_; }
  const Index3& index() const { return index_; }
  // In its cluster.
  unsigned rank() const { return index_.x % grid_.launch.cluster_blocks; }

 private:
  // Lanes of one mask that have arrived at an exchange.
  struct Exchange {
    Lanes lanes{};
    std::uint32_t arrived = 0;
    const char* what = "";
    bool is_syncwarp = false;
    Place place;
  };

  static void begin_thread();
  void resume(Thread& thread);
  void suspend();
  bool release_barrier();
  void release_exchange(std::size_t warp, std::size_t index);
  void set_busy(bool busy);
  // Of a thread's clock, in the cluster.
  int component(const Thread& thread) const {
    return static_cast<int>(rank() * threads_.size()) + thread.linear;
  }
  bool is_late() const;
  void check_time(const Site& site);
  void shuffle(std::vector<int>& order);
  std::string account_of_threads() const;
  std::string name_of(const Thread& thread) const;

  Grid& grid_;
  Index3 index_;
  std::uint64_t random_;
  const Clock::time_point begin_ = Clock::now();
  std::uint32_t ticks_ = 0;
  std::vector<Thread> threads_;
  std::vector<std::vector<Exchange>> exchanges_;  // by warp
  std::shared_ptr<Detector> detector_;
  Context scheduler_;
  Thread* thread_ = nullptr;
  bool busy_ = false;
  int waiting_ = 0;  // at the barrier
  int done_ = 0;
  Votes votes_{};
};

// Readies this OS thread's shared memory for a block: as if never written.
void clear_shared(std::size_t dynamic_bytes);
// Where it lies.
Range shared_window();

// The block that this OS thread runs, while one of its threads does; null in host code and in the
// interpreter's own.
Block* current_block();

}  // namespace diglot::interpreter
