// The mbarriers of a block: barriers in shared memory that count arrivals and bytes. PTX ISA,
// "mbarrier".
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "interpreter/detector.h"

namespace diglot::interpreter {

// Functions that return a string return the fault, or "". A barrier is named by its offset in the
// block's shared memory.
class Mbarriers {
 public:
  // `component` is that of the barrier's channel, if races are looked for.
  std::string init(std::size_t offset, std::uint32_t arrivals, int component, const Site& site);
  std::string invalidate(std::size_t offset);
  // A fence makes all that are initialised visible to asynchronous copies.
  void fence();
  bool is_fenced(std::size_t offset) const;
  // Expects more bytes in this phase, and then notes arrivals. Either may be zero. Whoever waits
  // for the phase acquires the clock.
  std::string arrive(std::size_t offset, std::uint32_t arrivals, std::uint32_t bytes,
                     const Clock& clock);
  // Notes bytes that an operation has written. Waiting threads acquire the clock too.
  std::string complete(std::size_t offset, std::uint32_t bytes, const Clock& clock);
  // The channel that tells of operations that complete now.
  Channel channel(std::size_t offset) const;
  // What threads and operations released in the phase that ended last.
  const Clock& released(std::size_t offset) const;

  // A wait for the end of a phase.
  struct Wait {
    std::size_t offset = 0;
    std::uint64_t phase = 0;  // which must have ended
  };
  // A wait for the phase of this parity: the current one, or the one before, which has ended.
  std::string begin_wait(std::size_t offset, bool parity, Wait& wait) const;
  bool has_ended(const Wait& wait) const;
  // Whether two phases have ended since, so that a waiting thread of a GPU may have missed the
  // first.
  bool is_missed(const Wait& wait) const;

  // "phase 3 (parity 1): 1 of 2 arrivals pending, expected 32768 bytes, got 16384"
  std::string account(std::size_t offset) const;
  // Whether ordinary accesses may not touch these bytes.
  bool is_live(std::size_t begin, std::size_t end) const {
    return begin < end_ && end > begin_ && overlaps(begin, end);
  }
  // Why a block may not end now; "" if it may.
  std::string fault_at_end() const;

 private:
  struct State {
    std::uint32_t expected = 0, pending = 0;  // arrivals
    std::int64_t due_bytes = 0;               // expected less completed
    std::uint64_t phase = 0;
    std::int64_t expected_bytes = 0;  // of this phase, for messages
    Site site;                        // that initialised it
    bool is_fenced = false;
    int component = 0;
    PhaseClock clock;
  };

  // Null if there is no mbarrier.
  const State* find(std::size_t offset) const;
  bool overlaps(std::size_t begin, std::size_t end) const;
  std::string end_phase(State& state);
  void find_bounds();

  std::map<std::size_t, State> states_;
  std::size_t begin_ = 0, end_ = 0;  // of them all
};

constexpr std::size_t kMbarrierBytes = 8;

}  // namespace diglot::interpreter
