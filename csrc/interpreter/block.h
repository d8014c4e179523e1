// One block while it runs: its threads and what they wait for.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "interpreter/bulk_groups.h"
#include "interpreter/cluster.h"
#include "interpreter/copies.h"
#include "interpreter/fiber.h"
#include "interpreter/global_memory.h"
#include "interpreter/interpreter.h"
#include "interpreter/mbarrier.h"
#include "interpreter/named_barriers.h"
#include "interpreter/registers.h"
#include "interpreter/shared_memory.h"
#include "interpreter/warpgroup.h"

namespace diglot::interpreter {

// What all blocks of a launch share.
struct Grid {
  Grid(const Launch& launch, const Kernel& kernel, const std::vector<Range>* arguments);
  ~Grid();

  const Launch& launch;
  const Kernel& kernel;
  const std::vector<Range>* arguments;
  std::atomic<std::uint64_t> progress{0};  // grows with everything that a waiting thread may see
  std::atomic<std::int64_t> busy{0};       // blocks with a thread that does more than wait
  std::atomic<bool> is_over{false};        // a thread has failed
  std::atomic<std::uint64_t> ended{0};     // blocks
  std::unique_ptr<const Watch> watch;      // of the arguments, if they are watched
  std::unique_ptr<Launched> launched;      // null if races are not looked for
  std::mutex mutex;
  std::string failure;
  std::map<std::uint32_t, std::weak_ptr<Cluster>> clusters;  // by number, of those that run

  void fail(const std::string& what);
  // What the blocks of a cluster share, which is the same object for all of them.
  std::shared_ptr<Cluster> join_cluster(std::uint32_t number, std::uint64_t seed);
};

enum class State { kNew, kReady, kAtBarrier, kAtWarp, kWaiting, kDone };

// What a thread waits for in kWaiting.
struct Wait {
  std::function<bool()> is_over;
  std::function<std::string()> account;  // of it, for a deadlock's report
};

struct Thread {
  Index3 index;
  int linear = 0;
  State state = State::kNew;
  Context context;
  std::unique_ptr<Stack> stack;
  const char* stack_begin = nullptr;  // here too, since every access of the thread looks for it
  const char* waits_in = "";
  Site site;
  int looks = 0;                  // at memory that others may change, since its own last change
  int turns = 0;                  // looks since it was resumed
  const void* deepest = nullptr;  // frame that has looked
  Lanes lanes;                    // what the last exchange gave
  Votes votes;                    // what the last barrier gave
  Wait wait;
  bool is_at_cluster_barrier = false;  // it has arrived, and not waited since
  std::uint32_t cluster_phase = 0;     // that it arrived in
  Clock inits;    // of mbarriers, which the thread has fenced: a relaxed arrival tells of them
  Clock readers;  // whom it has waited for: its end and the operations that it issues come later
  AsyncCopies copies;
  BulkGroups bulk_groups;
  std::unique_ptr<Accumulators> accumulators;  // null until the thread uses wgmma

  // A thread that has looked so often does nothing but wait.
  static constexpr int kIdle = 64;
  bool is_idle() const { return looks >= kIdle; }
  int lane() const { return linear % kWarp; }
  int warp() const { return linear / kWarp; }
};

class Block {
 public:
  using Time = std::chrono::steady_clock;

  Block(Grid& grid, std::shared_ptr<Cluster> cluster, Index3 index, std::uint64_t seed);
  ~Block();

  // Runs all threads to their end, or until the grid is over.
  void run();

  Votes barrier(bool predicate, const char* what, Place place);
  // The two halves of the cluster's barrier.
  void arrive_at_cluster(bool releases, Place place);
  void wait_for_cluster(Place place);
  Lanes exchange(std::uint32_t mask, std::uint64_t value, const char* what, Place place);
  std::uint32_t active_mask() const;
  void poll(const Site& site);
  void look(const Site& site);
  // Suspends the thread until `is_over` is true; it is called again and again between threads'
  // turns. `account` tells a deadlock's report more of the wait; it may be empty.
  void wait_until(std::function<bool()> is_over, const char* what,
                  std::function<std::string()> account, Place place);
  [[noreturn]] void fail(const std::string& what, const Site& site);
  // Sets the block, thread and clock of what the thread issues.
  void sign(Issue& issue);
  void issue(Operation operation);
  // A channel's component; -1 if races are not looked for.
  int add_channel();
  // What the thread has seen and done until now, if races are looked for.
  Clock release();
  void acquire(const Clock& clock);
  // The thread has seen that its own operations are complete, up to the channel's epoch.
  void acquire(const Channel& channel);
  // What a thread acquires that sees by the channel that an operation is complete.
  Clock completed(const Issue& issue, const Channel& channel);
  // A fault of an operation that has been issued. Unlike fail(), this returns.
  void fail_operation(const std::string& what, const Issue& issue);
  // Counts an access. Now and then it looks at the time, since a thread may never wait.
  void tick(const Site& site) {
    constexpr std::uint32_t kTicks = 1 << 16;
    if (++ticks_ % kTicks == 0) check_time(site);
  }

  // A number that the seed decides.
  std::uint64_t random() { return random_.next(); }

  bool is_running() const { return thread_ != nullptr; }
  Thread& thread() { return *thread_; }
  Grid& grid() { return grid_; }
  Cluster& cluster() { return *cluster_; }
  Mbarriers& mbarriers() { return mbarriers_; }
  NamedBarriers& named_barriers() { return named_barriers_; }
  Registers& registers() { return registers_; }
  Warpgroup& warpgroup(int index) { return warpgroups_[index]; }
  SharedMemory& shared() { return shared_; }
  const SharedMemory& shared() const { return shared_; }
  const Index3& index() const { return index_; }
  // The component of a thread in the cluster's clocks.
  int component(const Thread& thread) const {
    return static_cast<int>(rank() * threads_.size()) + thread.linear;
  }
  int threads() const { return static_cast<int>(threads_.size()); }
  int live_threads() const { return threads() - done_; }
  // Who waits for what.
  std::string account() const;
  // The number of the block in its cluster.
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

  enum class Round { kWorked, kLooked, kStuck };  // threads only looked at memory; none could run

  static void begin_thread();
  Round run_round();
  void judge(Round round);
  void note_completion();
  void end();
  void resume(Thread& thread);
  void suspend();
  void begin_wait(State state, const char* what, Place place);
  void check_mask(std::uint32_t mask, const char* what, Place place);
  bool release_barrier();
  void release_exchange(std::size_t warp, std::size_t index);
  void set_busy(bool busy);
  bool is_late() const;
  void check_time(const Site& site);
  void shuffle(std::vector<int>& order);
  std::string name_of(const Thread& thread) const;

  Grid& grid_;
  const std::shared_ptr<Cluster> cluster_;
  Index3 index_;
  Random random_;
  const Time::time_point begin_ = Time::now();
  std::uint32_t ticks_ = 0;
  std::vector<Thread> threads_;
  std::vector<std::vector<Exchange>> exchanges_;  // by warp
  SharedMemory shared_;
  Mbarriers mbarriers_;
  NamedBarriers named_barriers_;
  Registers registers_;
  std::vector<Warpgroup> warpgroups_;
  Context scheduler_;
  Thread* thread_ = nullptr;
  std::vector<int> order_;  // of threads in a round
  std::uint64_t seen_progress_ = 0;
  Time::time_point seen_at_ = begin_;  // since when there has been none
  bool busy_ = false;
  int waiting_ = 0;  // at the barrier
  int done_ = 0;
  Votes votes_{};
};

// By its number in x-major order.
Index3 index_of(std::uint64_t linear, const Index3& size);
std::string text_of(const Index3& index);

// The block that this OS thread runs, while one of its threads does; null in host code and in the
// interpreter's own.
Block* current_block();

// Ends the kernel of the thread that runs.
[[noreturn]] void fail(const std::string& what, Place place);
// The same, if there is a fault.
void check_fault(const std::string& fault, Place place);

}  // namespace diglot::interpreter
