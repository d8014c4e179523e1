#include "interpreter/named_barriers.h"

namespace diglot::interpreter {

std::string NamedBarriers::arrive(int number, int threads, const Clock& clock, const Site& site) {
  if (number < 0 || number >= kCount) {
    return "barrier " + std::to_string(number) + ": a block has barriers 0 to 15";
  }
  if (threads <= 0 || threads % kWarp != 0) {
    return "barrier " + std::to_string(number) + " for " + std::to_string(threads) +
           " threads, which is no multiple of 32";
  }
  Barrier& barrier = barriers_[number];
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.site = site;
  } else if (barrier.expected != threads) {
    return "barrier " + std::to_string(number) + " for " + std::to_string(threads) +
           " threads, where others arrived at it for " + std::to_string(barrier.expected) + " at " +
           barrier.site.text();
  }
  barrier.clock.release(clock);
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.phase;
    barrier.clock.end_phase();
  }
  return "";
}

std::string NamedBarriers::account(int number) const {
  const Barrier& barrier = barriers_[number];
  return std::to_string(barrier.arrived) + " of " + std::to_string(barrier.expected) +
         " threads have arrived at barrier " + std::to_string(number);
}

}  // namespace diglot::interpreter
