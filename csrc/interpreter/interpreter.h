// Runs CUDA kernels on the host. The threads of a block are fibers of one OS thread, so that a
// barrier is a switch; blocks run on several OS threads. Kernels call the functions of include/,
// which stands in for CUDA's own headers. docs/interpreter.md says how much is modelled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace diglot {

// A line of a kernel's source.
struct Place {
  const char* file = nullptr;
  int line = 0;

  static Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Place& other) const { return line == other.line && file == other.file; }
};

}  // namespace diglot

namespace diglot::interpreter {

struct Index3 {
  unsigned x = 1, y = 1, z = 1;

  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

// What a kernel did that no kernel may do. The message names kernel, block, thread and place.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Memory that a kernel may touch: [begin, end). It may be rows with padding: a row begins every
// `pitch` bytes, and its bytes from `row_bytes` on are padding, which no kernel may read.
struct Range {
  const char* begin;
  const char* end;
  bool is_writable = true;
  std::size_t row_bytes = 0, pitch = 0;  // equal: no padding
};

// While one lives, kernels that this OS thread starts may touch these ranges, their own locals,
// parameters and constants, and shared memory. Without one, they may touch all memory.
class Arguments {
 public:
  // Throws std::invalid_argument if rows are longer than their pitch.
  explicit Arguments(std::vector<Range> ranges);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

 private:
  std::vector<Range> ranges_;
  const std::vector<Range>* outer_;
};

// Bytes from an address to the end of its range in this OS thread's Arguments; 0 outside of them.
std::uint64_t argument_bytes(const void* address);

// While one lives, the race checks of launches that begin cover these ranges of global memory too:
// among threads of all blocks, and of launches that run at once. A launch that ended before another
// began is ordered before it.
class Watch {
 public:
  explicit Watch(std::vector<Range> ranges);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::vector<Range> ranges_;
};

struct Launch {
  std::string kernel;  // its name, for messages
  Index3 grid;
  Index3 block;
  std::size_t shared_bytes = 0;  // dynamic shared memory
  bool is_cooperative = false;   // all blocks at once
  unsigned cluster_blocks = 1;   // neighbours of a cluster, which run at once
};

// The device that is modelled: a small one with multiprocessors much like an H200's.
constexpr unsigned kMaxBlockThreads = 1024;
constexpr std::size_t kMaxSharedBytes = 227 * 1024;  // of a block; a multiprocessor has as much
constexpr unsigned kMultiprocessors = 8;
constexpr unsigned kMultiprocessorThreads = 2048;
constexpr unsigned kMultiprocessorBlocks = 8;
constexpr unsigned kMaxClusterBlocks = 8;
constexpr int kWarp = 32;

// How many blocks run at once, the most for a co-operative launch. 0 if not even one fits.
unsigned resident_blocks(std::uint64_t block_threads, std::size_t shared_bytes);

// A kernel with its parameters, which it may read: call(parameters) is one thread's run.
struct Kernel {
  void (*call)(const void* parameters);
  const void* parameters;
  std::size_t bytes;
};

// Runs `kernel` once for every thread. Throws std::invalid_argument where CUDA would refuse the
// launch, and Fault at the first fault, after which no thread runs on.
void run(const Launch& launch, const Kernel& kernel);

// The same for a function object that holds the parameters.
template <typename Function>
void run(const Launch& launch, const Function& function) {
  run(launch, Kernel{[](const void* held) { (*static_cast<const Function*>(held))(); }, &function,
                     sizeof(function)});
}

struct Options {
  std::uint64_t seed = 0;    // of the order in which blocks, warps and threads run
  bool finds_races = false;  // also watch who touches which byte of shared memory
  unsigned os_threads = 0;   // 0: as many as the machine has
  // How long blocks that do nothing but wait are believed to wait for something.
  unsigned patience_ms = 2000;
  unsigned seconds = 300;  // after which a block is taken to have no end
  // Whether a generic read and an async write after it race if no fence.proxy.async is between.
  bool finds_generic_reads_before_async_writes = true;
  bool truncates_fp8 = false;  // sums of wgmma's FP8 products keep 14 bits, as Hopper's do
  // Whether a launch watches, like a Watch, the memory that Arguments let it write.
  bool watches_arguments = false;
};
// At first the values of the variables DIGLOT_INTERPRET_SEED, _RACES, _THREADS, _SECONDS and
// _TRUNCATE_FP8. Throws std::invalid_argument if one is not a number.
Options& options();

// --- what include/ is made of: called by kernels -------------------------------------------------

Index3 thread_index();
Index3 block_index();
Index3 block_size();
Index3 grid_size();

struct Votes {
  int count;  // of threads whose predicate was true
  bool all;
  bool any;
};
Votes block_barrier(bool predicate, const char* what, Place place);

// The 64-bit values that the lanes of a mask contributed.
struct Lanes {
  std::uint64_t values[kWarp];
  std::uint32_t mask;
  int lane;
};
Lanes warp_exchange(std::uint32_t mask, std::uint64_t value, const char* what, Place place);
std::uint32_t active_mask();

// Memory has changed in a way that a waiting thread may see.
void note_change();
// One round of a loop that waits for memory to change: lets other threads and blocks run. It is a
// fault if every thread does nothing but wait.
void poll(Place place);
// An atomic operation has looked at memory. A thread that only looks, over and over, polls.
void look(Place place);

// Whose threads an atomic operation or a fence is for, and what it orders. PTX ISA, "Scope".
enum class Scope { kBlock, kCluster, kDevice, kSystem };
enum class Ordering { kRelaxed, kAcquire, kRelease, kAcquireRelease };
void fence(Scope scope);

// Strong accesses, which are atomic or volatile, do not race with each other.
enum class Access { kRead, kWrite, kAtomic, kStrongRead, kStrongWrite };
inline bool is_read(Access access) {
  return access == Access::kRead || access == Access::kStrongRead;
}
inline bool only_writes(Access access) {
  return access == Access::kWrite || access == Access::kStrongWrite;
}
// Called before an atomic operation. Returns whether end_atomic() must follow the operation.
bool begin_atomic(const void* address, std::size_t bytes, Access access, Scope scope, Place place);
void end_atomic(const void* address, Access access, Ordering ordering, Scope scope, Place place);
// An access that the compiler does not report by itself.
void touch(const void* address, std::size_t bytes, Access access, Place place);

// The interpreter puts the messages together, since it watches what a kernel's own code does.
[[noreturn]] void fail(const char* what, Place place);
[[noreturn]] void fail_width(const char* what, Place place);
[[noreturn]] void fail_absent_lane(const char* what, int lane, Place place);

}  // namespace diglot::interpreter
