// Instructions that all threads of a warpgroup must execute alike, though none waits for another:
// wgmma's fences, commits and waits. PTX ISA, "wgmma.fence", ".aligned".
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "interpreter/products.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

// Every function returns the fault, or "".
class Aligned {
 public:
  // A thread, by its number in the block, executes one: the same as the others in their turn.
  std::string note(int thread, const char* what, Place place);
  // All threads have ended.
  std::string fault_at_end() const;

 private:
  struct Step {
    const char* what;
    Place place;
    int first_thread;  // that executed it
    int threads = 0;   // how many did
  };

  std::deque<Step> steps_;                          // not executed by all
  std::uint64_t done_ = 0;                          // how many are
  std::array<std::uint64_t, kWarpgroup> counts_{};  // of each thread
};

}  // namespace diglot::interpreter
