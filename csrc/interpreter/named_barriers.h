// Barriers of a part of a block's threads: bar.sync and bar.arrive with a number and a count. PTX
// ISA, "barrier".
#pragma once

#include <cstdint>
#include <string>

#include "interpreter/detector.h"

namespace diglot::interpreter {

class NamedBarriers {
 public:
  static constexpr int kCount = 16;

  // A thread arrives at a barrier for `threads` threads, and releases the clock. Returns the fault,
  // or "".
  std::string arrive(int number, int threads, const Clock& clock, const Site& site);
  // What threads released in the phase that ended last.
  const Clock& released(int number) const { return barriers_[number].clock.last(); }
  // How often all its threads have arrived.
  std::uint32_t phase(int number) const { return barriers_[number].phase; }
  // "32 of 64 threads have arrived at barrier 3"
  std::string account(int number) const;

 private:
  struct Barrier {
    int expected = 0, arrived = 0;
    std::uint32_t phase = 0;
    Site site;  // of the first arrival of the phase
    PhaseClock clock;
  };
  Barrier barriers_[kCount];
};

}  // namespace diglot::interpreter
