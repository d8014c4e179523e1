// Races in global memory: the ranges that a test watches, and the words through which blocks and
// launches order each other. There is one GlobalMemory for the process.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "interpreter/flags.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

// A launch, as the race checks know it while it runs.
struct Launched {
  const Launch* launch;
  Past past;
  std::uint32_t groups;        // one for each cluster, from past.begin on
  std::vector<Range> watched;  // when it began

  bool watches(const void* address) const {
    for (const Range& range : watched) {
      if (address >= range.begin && address < range.end) return true;
    }
    return false;
  }
};

class GlobalMemory {
 public:
  static GlobalMemory& instance();

  void watch(const Range& range);
  void end_watch(const Range& range);

  Launched begin(const Launch& launch);
  void end(const Launched& launched);

  // Must be held by whoever uses the two members below.
  std::mutex& mutex;
  Flags flags;
  Races races;

 private:
  // A launch, as messages describe it.
  struct Described {
    std::uint32_t begin, groups;
    std::string kernel;
    Index3 grid;
    unsigned cluster_blocks, block_threads;
    bool is_running;
  };

  GlobalMemory();
  std::string name(std::uint32_t group, int thread, const Actor& to) const;

  std::vector<Range> watched_;
  std::vector<Described> launches_;
  std::uint32_t next_group_ = 1;
};

}  // namespace diglot::interpreter
