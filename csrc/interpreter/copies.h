// A thread's asynchronous copies of a few bytes from global to shared memory: cp.async. PTX ISA,
// "cp.async".
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "interpreter/async_queue.h"

namespace diglot::interpreter {

class Block;

// A copy happens when it is issued, or as late as the wait for its group: the seed decides. A
// kernel must expect both.
class AsyncCopies {
 public:
  void issue(Block& block, void* to, const void* from, std::size_t bytes, Place place);
  void commit();
  // Returns when at most the latest `newer` groups are under way.
  void wait(Block& block, std::size_t newer);

 private:
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
    Issue issue;
    bool is_done;
  };

  void copy(Block& block, const Copy& copy, std::uint32_t group);

  std::vector<Copy> open_;
  std::deque<std::vector<Copy>> groups_;
  std::uint32_t done_ = 0;  // groups
  int component_ = -1;      // of the channel that tells of groups
};

}  // namespace diglot::interpreter
