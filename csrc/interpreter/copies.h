// A thread's asynchronous copies of a few bytes from global to shared memory: cp.async. PTX ISA,
// "cp.async".
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "interpreter/interpreter.h"

namespace diglot::interpreter {

// A copy happens when it is issued, or as late as the wait for its group, as chance has it: at each
// time a kernel must expect it.
class AsyncCopies {
 public:
  void issue(void* to, const void* from, std::size_t bytes, bool is_late, Place place);
  void commit() { groups_.emplace_back().swap(open_); }
  // Returns when at most the latest `newer` groups are under way.
  void wait(std::size_t newer);
  // The same for all copies, committed or not.
  void wait_for_all();

 private:
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
    Place place;
  };
  static void copy(const Copy& copy);

  std::vector<Copy> open_;
  std::vector<std::vector<Copy>> groups_;
};

}  // namespace diglot::interpreter
