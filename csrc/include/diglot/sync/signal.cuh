// Signals between GPUs: how the same block of every rank meets the others, and packets that carry
// their own flag. Twin of triton_ops/lib/sync/signal.py.
//
//   __global__ void kernel(SignalSpace* space, ...) {
//     Signals signals(space, {rank, ranks, op, call, patience});
//     staging[...] = ...;                    // in this rank's memory
//     if (!signals.meet(kOpening)) ...       // every rank's staging is there
//     ... = peers' staging[...]
//
// Each rank has a workspace that all ranks' GPUs can address. It begins with a SignalSpace, whose
// words after its addresses are zero at first. All ranks launch the same kernels on it, with equal
// grids, in the same order and one after the other. Every block of such a kernel constructs one
// Signals. All blocks of a grid must run at once.
//
// Epochs. Each launch has a number, its epoch, which is the same on all ranks. Nobody passes it:
// each launch adds 2^16 in all to a counter in device memory. So a CUDA graph may replay it.
//
// Meeting. Block b of each rank stores the epoch to a word of its own in every peer's space, as a
// release at system scope. It then polls its own words for the peers' epochs, as an acquire. A word
// holds the newest epoch, and nobody resets it. A rank that is already in a later launch has also
// been in this one, or it has given up: then it arrives nowhere any more. docs/collectives.md
// argues the order.
//
// Packets. A packet has four bytes of data and four of flag, and is one 8-byte access. So whoever
// reads the flag has the data: no order of several accesses matters. The flag is the launch's
// epoch, so that nobody clears a packet.
//
// Patience. Every wait ends: after `patience` nanoseconds a block gives up. The first that does so
// writes to the report who waited for whom. It also marks the counter of launches, so that all
// threads of a later block learn of the fault with their epoch. Their meetings fail at once, and
// their waits for packets take only those that have come.
#pragma once

#include "diglot/platform.cuh"

#if defined(DIGLOT_INTERPRETER)
#include <chrono>
#endif

namespace diglot {

constexpr int kMostRanks = 8;
constexpr int kMostSignalBlocks = 256;
// The words that blocks meet at. Two meetings in one launch take two phases.
enum SignalPhase { kOpening, kClosing, kSignalPhases };

// The wait that took too long first. It lies in pinned memory of the host, as int64 [8].
struct SignalReport {
  int64_t is_there;  // written last
  int64_t rank;
  int64_t op;
  int64_t epoch;
  int64_t block;
  int64_t peer;      // for whom it waited
  int64_t has_come;  // 1: the peer came, with another call
  int64_t unused;
};

// The beginning of every rank's workspace.
struct SignalSpace {
  uint64_t addresses[64];  // of all ranks' workspaces, as this rank's GPU sees them
  SignalReport* report;
  unsigned long long epochs;  // launches until now, times 2^16; the highest bit marks a fault
  uint64_t unused[62];
  uint64_t signals[kSignalPhases][kMostSignalBlocks][kMostRanks];  // by the rank that sets them
};
static_assert(sizeof(SignalSpace) == 1024 + 8 * kSignalPhases * kMostSignalBlocks * kMostRanks);

// --- accesses that order other GPUs' accesses: PTX ISA, "Memory Consistency Model", scope .sys ---

DIGLOT_DEVICE void store_release_system(uint64_t* word, uint64_t value,
                                        [[maybe_unused]] Place place = Place::here()) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.b64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
#elif defined(DIGLOT_INTERPRETER)
  interpreter::atomic_store(word, value,
                            {interpreter::Ordering::kRelease, interpreter::Scope::kSystem}, place);
#else
  *word = value;
#endif
}

DIGLOT_DEVICE uint64_t load_acquire_system(const uint64_t* word,
                                           [[maybe_unused]] Place place = Place::here()) {
#if defined(__CUDA_ARCH__)
  uint64_t value;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#elif defined(DIGLOT_INTERPRETER)
  return interpreter::atomic_load(
      word, {interpreter::Ordering::kAcquire, interpreter::Scope::kSystem}, place);
#else
  return *word;
#endif
}

// Two packets: 8 bytes of data.
struct alignas(16) Packets {
  uint64_t packets[2];  // data in the lower half, flag in the upper

  DIGLOT_DEVICE static Packets make(uint2 data, uint32_t flag) {
    const uint64_t upper = uint64_t{flag} << 32;
    return {{upper | data.x, upper | data.y}};
  }
  DIGLOT_DEVICE bool have(uint32_t flag) const {
    return static_cast<uint32_t>(packets[0] >> 32) == flag &&
           static_cast<uint32_t>(packets[1] >> 32) == flag;
  }
  DIGLOT_DEVICE uint2 data() const {
    return {static_cast<uint32_t>(packets[0]), static_cast<uint32_t>(packets[1])};
  }
};

// One instruction, but two accesses: PTX promises that each 8-byte element is whole.
DIGLOT_DEVICE void store_packets(Packets* address, const Packets& value,
                                 [[maybe_unused]] Place place = Place::here()) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};"
               :
               : "l"(address), "l"(value.packets[0]), "l"(value.packets[1])
               : "memory");
#elif defined(DIGLOT_INTERPRETER)
  for (int i = 0; i < 2; ++i) {
    interpreter::atomic_store(&address->packets[i], value.packets[i],
                              {interpreter::Ordering::kRelaxed, interpreter::Scope::kSystem},
                              place);
  }
#else
  *address = value;
#endif
}

DIGLOT_DEVICE Packets load_packets(const Packets* address,
                                   [[maybe_unused]] Place place = Place::here()) {
  Packets value;
#if defined(__CUDA_ARCH__)
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(value.packets[0]), "=l"(value.packets[1])
               : "l"(address)
               : "memory");
#elif defined(DIGLOT_INTERPRETER)
  for (int i = 0; i < 2; ++i) {
    value.packets[i] = interpreter::atomic_load(
        &address->packets[i], {interpreter::Ordering::kRelaxed, interpreter::Scope::kSystem},
        place);
  }
#else
  value = *address;
#endif
  return value;
}

// --- waits that end ------------------------------------------------------------------------------

DIGLOT_DEVICE uint64_t clock_nanoseconds() {
#if defined(__CUDA_ARCH__)
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#elif defined(DIGLOT_INTERPRETER)
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
#else
  return 0;
#endif
}

// How long a thread waits, from its first look at the clock on.
class Deadline {
 public:
  DIGLOT_DEVICE explicit Deadline(int64_t patience) : patience_(patience) {}

  // Called in each round of a wait.
  DIGLOT_DEVICE bool is_over([[maybe_unused]] Place place = Place::here()) {
    if (++rounds_ % kRounds != 0) return false;
    const uint64_t now = clock_nanoseconds();
    if (rounds_ == kRounds) begin_ = now;
    const bool is_over = static_cast<int64_t>(now - begin_) >= patience_;
#if defined(DIGLOT_INTERPRETER)
    // Such a wait ends by itself, so it is no deadlock, whatever the other ranks' processes do.
    if (!is_over) interpreter::note_change();
    interpreter::poll(place);
#endif
    return is_over;
  }

 private:
  static constexpr uint32_t kRounds = 64;  // looks at memory for one look at the clock

  int64_t patience_;
  uint64_t begin_ = 0;
  uint32_t rounds_ = 0;
};

// A rank's part in a launch.
struct Party {
  int rank;
  int ranks;
  int op;            // for the report
  uint16_t call;     // equal on all ranks, unless their calls do not fit each other
  int64_t patience;  // nanoseconds
};

class Signals {
 public:
  // All threads of a block.
  DIGLOT_DEVICE Signals(SignalSpace* space, const Party& party) : space_(space), party_(party) {
    // These loads are in flight while the epoch is.
    const int peer = static_cast<int>(threadIdx.x);
    peer_ = peer < party.ranks && peer != party.rank ? space_of(peer) : nullptr;
    __shared__ unsigned long long epochs;
    if (threadIdx.x == 0) epochs = take_epoch();
    __syncthreads();
    epoch_ = ((epochs & ~kFault) >> kShift) + 1;
    if ((epochs & kFault) != 0) party_.patience = kNone;
  }

  DIGLOT_DEVICE uint64_t epoch() const { return epoch_; }
  // Which of two buffers the launch uses.
  DIGLOT_DEVICE int parity() const { return static_cast<int>(epoch_ & 1); }
  // Memory is zero before its first use, so 0 flags nothing.
  DIGLOT_DEVICE uint32_t flag() const {
    const auto low = static_cast<uint32_t>(epoch_);
    return low == 0 ? 1 : low;
  }
  DIGLOT_DEVICE SignalSpace* space_of(int rank) const {
    return reinterpret_cast<SignalSpace*>(space_->addresses[rank]);
  }
  DIGLOT_DEVICE int64_t patience() const { return party_.patience; }
  // Whether a wait of an earlier launch took too long.
  DIGLOT_DEVICE bool has_failed_before() const { return party_.patience == kNone; }

  // All threads of the block wait for the same block of all ranks. Afterwards each sees what those
  // blocks wrote before. False if a peer did not come in time, or with another call.
  DIGLOT_DEVICE bool meet(SignalPhase phase) {
    __syncthreads();
    arrive(phase);
    return wait(phase);
  }

  // The two halves of a meeting. All threads of the block have passed a barrier before they arrive.
  // A launch after a fault arrives nowhere: a peer that still waits for the launch that failed, or
  // for one before, would take the later signal for that one's.
  DIGLOT_DEVICE void arrive(SignalPhase phase) {
    if (peer_ != nullptr && !has_failed_before()) {
      store_release_system(&peer_->signals[phase][blockIdx.x][party_.rank], signal());
    }
  }
  DIGLOT_DEVICE bool wait(SignalPhase phase) {
    bool have_met = !has_failed_before();
    if (peer_ != nullptr && have_met) {
      have_met = await(&space_->signals[phase][blockIdx.x][threadIdx.x], signal());
    }
    return __syncthreads_and(have_met) != 0;
  }

  // Records that this block has waited too long for a peer.
  DIGLOT_DEVICE void give_up(int peer, bool has_come = false) {
    if (party_.patience != kNone) party_.patience = 0;
    if ((atomicOr(&space_->epochs, kFault) & kFault) != 0) return;
    SignalReport* const report = space_->report;
    report->rank = party_.rank;
    report->op = party_.op;
    report->epoch = static_cast<int64_t>(epoch_);
    report->block = blockIdx.x;
    report->peer = peer;
    report->has_come = has_come;
    __threadfence_system();
    *static_cast<volatile int64_t*>(&report->is_there) = 1;
  }

 private:
  // A grid has less than 2^16 blocks. Epochs have 47 bits, and a signal has 16 more for the call.
  static constexpr int kShift = 16;
  static constexpr unsigned long long kFault = 1ull << 63;
  static constexpr int64_t kNone = -1;  // patience of a launch after a fault

  // The first block adds what the others leave of 2^16. Before its own addition a block therefore
  // finds the number of earlier launches in the upper bits, whoever else has added.
  DIGLOT_DEVICE unsigned long long take_epoch() {
    const unsigned long long step = blockIdx.x == 0 ? (1ull << kShift) - (gridDim.x - 1) : 1;
    return atomicAdd(&space_->epochs, step);
  }

  DIGLOT_DEVICE uint64_t signal() const { return epoch_ << kShift | party_.call; }

  DIGLOT_DEVICE bool await(const uint64_t* word, uint64_t signal) {
    Deadline deadline(party_.patience);
    for (;;) {
      const uint64_t seen = load_acquire_system(word);
      if (seen == signal || seen >> kShift > epoch_) return true;
      const bool has_come = seen >> kShift == epoch_;
      if (!has_come && !deadline.is_over()) continue;
      give_up(static_cast<int>(threadIdx.x), has_come);
      return false;
    }
  }

  SignalSpace* space_;
  Party party_;
  SignalSpace* peer_;  // the workspace of the rank that this thread meets, if any
  uint64_t epoch_;
};

}  // namespace diglot
