// Blocks on OS threads, and what a kernel may call.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <numeric>
#include <system_error>
#include <thread>

#include "interpreter/block.h"
#include "interpreter/interpreter.h"
#include "interpreter/signals.h"

namespace diglot::interpreter {

namespace {

// The ranges that launches of this OS thread may touch; null: no limit.
thread_local const std::vector<Range>* arguments = nullptr;

// What CUDA refuses, in its words.
void check(const Launch& launch) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("launching " + launch.kernel + ": " + why);
  };
  const auto& [kernel, grid, block, shared_bytes, is_cooperative, cluster_blocks] = launch;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535) {
    refuse("invalid configuration argument (cudaErrorInvalidConfiguration): a grid of " +
           text_of(grid));
  }
  const std::uint64_t threads = block.count();
  if (threads == 0 || threads > kMaxBlockThreads || block.z > 64) {
    refuse("invalid configuration argument (cudaErrorInvalidConfiguration): a block of " +
           text_of(block) + " threads; a block has at most " + std::to_string(kMaxBlockThreads));
  }
  if (shared_bytes > kMaxSharedBytes) {
    refuse("invalid argument (cudaErrorInvalidValue): " + std::to_string(shared_bytes) +
           " bytes of dynamic shared memory; a block has at most " +
           std::to_string(kMaxSharedBytes));
  }
  if (cluster_blocks == 0 || cluster_blocks > kMaxClusterBlocks || grid.x % cluster_blocks != 0) {
    refuse("invalid cluster size (cudaErrorInvalidClusterSize): clusters of " +
           std::to_string(cluster_blocks) + " blocks in a grid of " + text_of(grid) +
           "; a cluster has at most " + std::to_string(kMaxClusterBlocks));
  }
  const unsigned resident = resident_blocks(threads, shared_bytes);
  if (is_cooperative && grid.count() > resident) {
    refuse(
        "too many blocks in cooperative launch (cudaErrorCooperativeLaunchTooLarge): a grid of " +
        text_of(grid) + "; " + std::to_string(resident) + " blocks run at once");
  }
}

// The number that a variable of the environment holds, if it is set.
std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  errno = 0;
  const std::uint64_t number = std::strtoull(text, &end, 10);
  if (errno != 0 || *end != '\0' || std::isdigit(static_cast<unsigned char>(*text)) == 0) {
    throw std::invalid_argument(std::string(variable) +
                                " must be an integer from 0 to 2^64 - 1, not '" + text + "'");
  }
  return number;
}

Options options_of_environment() {
  Options result;
  result.seed = number_of("DIGLOT_INTERPRET_SEED", result.seed);
  const std::uint64_t races = number_of("DIGLOT_INTERPRET_RACES", 0);
  result.finds_races = races != 0;
  result.watches_arguments = races > 1;
  result.os_threads = static_cast<unsigned>(number_of("DIGLOT_INTERPRET_THREADS", 0));
  result.seconds = static_cast<unsigned>(number_of("DIGLOT_INTERPRET_SECONDS", result.seconds));
  result.truncates_fp8 = number_of("DIGLOT_INTERPRET_TRUNCATE_FP8", 0) != 0;
  return result;
}

// How many OS threads run the blocks of a launch.
std::uint64_t os_threads_of(const Launch& launch) {
  const std::uint64_t blocks = launch.grid.count(), block_threads = launch.block.count();
  if (launch.is_cooperative) return blocks;
  if (launch.cluster_blocks > 1) return launch.cluster_blocks;
  // Starting an OS thread takes as long as some hundred threads of a block.
  constexpr std::uint64_t kFewThreads = 2048;
  if (blocks * block_threads < kFewThreads) return 1;
  const unsigned machine = std::max(1u, std::thread::hardware_concurrency());
  const std::uint64_t allowed = options().os_threads > 0 ? options().os_threads : machine;
  // Every thread of the blocks that run may need a stack, which takes two of the 65530 mappings
  // that Linux gives a process by default.
  constexpr std::uint64_t kMostStacks = kMultiprocessors * kMultiprocessorThreads;
  return std::min({allowed, blocks, kMostStacks / block_threads});
}

// A random order of clusters that needs no list: steps of a stride that has no divisor in common
// with their number.
class ClusterOrder {
 public:
  ClusterOrder(std::uint64_t clusters, std::uint64_t seed)
      : clusters_(clusters), seed_(seed), stride_(seed % clusters | 1) {
    while (std::gcd(stride_, clusters) != 1) stride_ += 2;
  }
  std::uint64_t operator[](std::uint64_t i) const {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(i) * stride_ + seed_) %
                                      clusters_);
  }

 private:
  std::uint64_t clusters_, seed_, stride_;
};

// Runs a block, the i-th in the order of the launch.
void run_block(Grid& grid, const ClusterOrder& order, std::uint64_t i, std::uint64_t seed) {
  // Blocks of a cluster are taken one after the other, each by an OS thread of its own. When one is
  // taken, all of the clusters before have ended. Those of a cooperative launch run at once.
  const std::uint64_t together = grid.launch.cluster_blocks, cluster = i / together;
  const std::uint64_t place = order[cluster], linear = place * together + i % together;
  const bool is_alone = together > 1 && !grid.launch.is_cooperative;
  while (is_alone && grid.ended < cluster * together && !grid.is_over) {
    std::this_thread::yield();
  }
  try {
    const auto number = static_cast<std::uint32_t>(place);
    std::shared_ptr<Cluster> joined =
        together > 1 ? grid.join_cluster(number, seed + cluster)
                     : std::make_shared<Cluster>(grid, 1, number, seed + linear);
    Block(grid, std::move(joined), index_of(linear, grid.launch.grid), seed + linear).run();
  } catch (const std::exception& error) {  // out of memory, say
    grid.fail(error.what());
  }
}

// OS threads that end before this does.
class Team {
 public:
  ~Team() {
    for (std::thread& thread : threads_) thread.join();
  }
  // Whether there was another one to start.
  template <typename Work>
  bool start(const Work& work) {
    try {
      threads_.emplace_back(work);
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace

Arguments::Arguments(std::vector<Range> ranges) : ranges_(std::move(ranges)), outer_(arguments) {
  for (const Range& range : ranges_) {
    if (range.row_bytes > range.pitch) {
      throw std::invalid_argument("rows of " + std::to_string(range.row_bytes) +
                                  " bytes are longer than their pitch of " +
                                  std::to_string(range.pitch) + " bytes");
    }
  }
  arguments = &ranges_;
}

Arguments::~Arguments() { arguments = outer_; }

std::uint64_t argument_bytes(const void* address) {
  if (arguments == nullptr) return 0;
  const auto* const begin = static_cast<const char*>(address);
  for (const Range& range : *arguments) {
    if (begin >= range.begin && begin < range.end) {
      return static_cast<std::uint64_t>(range.end - begin);
    }
  }
  return 0;
}

unsigned resident_blocks(std::uint64_t block_threads, std::size_t shared_bytes) {
  if (block_threads == 0 || block_threads > kMaxBlockThreads || shared_bytes > kMaxSharedBytes) {
    return 0;
  }
  const std::uint64_t whole_warps = (block_threads + kWarp - 1) / kWarp * kWarp;
  std::uint64_t blocks =
      std::min<std::uint64_t>(kMultiprocessorBlocks, kMultiprocessorThreads / whole_warps);
  if (shared_bytes > 0) blocks = std::min<std::uint64_t>(blocks, kMaxSharedBytes / shared_bytes);
  return static_cast<unsigned>(kMultiprocessors * blocks);
}

Options& options() {
  static Options instance = options_of_environment();
  return instance;
}

void run(const Launch& launch, const Kernel& kernel) {
  check(launch);
  const std::uint64_t blocks = launch.grid.count();
  Grid grid(launch, kernel, arguments);

  const std::uint64_t together = launch.cluster_blocks;
  const std::uint64_t seed = options().seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  // Blocks that wait for each other are counted as busy before they start: a block that waits for
  // one that has no OS thread yet is in no deadlock.
  if (launch.is_cooperative) {
    grid.busy = static_cast<std::int64_t>(blocks);
  } else if (together > 1) {
    grid.busy = static_cast<std::int64_t>(together);
  }
  std::atomic<std::uint64_t> ended{0};
  const auto count_next_cluster = [&] {
    const std::uint64_t count = ++ended;
    if (launch.is_cooperative || together == 1 || count % together != 0 || count == blocks) return;
    grid.busy += static_cast<std::int64_t>(together);
  };
  const ClusterOrder order(blocks / together, seed);
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    const CatchSignals scope;
    for (std::uint64_t i; !grid.is_over && (i = next++) < blocks;) {
      run_block(grid, order, i, seed);
      count_next_cluster();
      ++grid.ended;  // lets the next cluster start
    }
  };

  const std::uint64_t workers = os_threads_of(launch);
  {
    Team others;
    for (std::uint64_t i = 1; i < workers; ++i) {
      if (others.start(work)) continue;
      // Fewer do as well, unless blocks wait for each other.
      if (launch.is_cooperative || together > 1) {
        grid.fail("the system starts no more than " + std::to_string(i) + " OS threads, and " +
                  std::to_string(blocks) + " blocks are to run at once");
      }
      break;
    }
    work();
  }
  if (!grid.failure.empty()) throw Fault(grid.failure);
}

Index3 thread_index() { return current_block()->thread().index; }
Index3 block_index() { return current_block()->index(); }
Index3 block_size() { return current_block()->grid().launch.block; }
Index3 grid_size() { return current_block()->grid().launch.grid; }

Votes block_barrier(bool predicate, const char* what, Place place) {
  return current_block()->barrier(predicate, what, place);
}

Lanes warp_exchange(std::uint32_t mask, std::uint64_t value, const char* what, Place place) {
  return current_block()->exchange(mask, value, what, place);
}

std::uint32_t active_mask() { return current_block()->active_mask(); }

void note_change() {
  Block* const block = current_block();
  if (block == nullptr) return;
  block->thread().looks = 0;
  ++block->grid().progress;
}

void poll(Place place) { current_block()->poll(place); }

void look(Place place) {
  if (Block* const block = current_block()) block->look(place);
}

void fail(const char* what, Place place) { fail(std::string(what), place); }

void fail_width(const char* what, Place place) {
  fail(std::string(what) + " of a width that is no power of two up to 32", place);
}

void fail_absent_lane(const char* what, int lane, Place place) {
  fail(std::string(what) + " from lane " + std::to_string(lane) + ", which is not there", place);
}

}  // namespace diglot::interpreter
