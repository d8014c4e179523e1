// The registers of a block, which warps give back and ask for again: setmaxnreg. PTX ISA,
// "setmaxnreg".
#pragma once

#include <string>
#include <vector>

namespace diglot::interpreter {

class Registers {
 public:
  // As many a thread as a multiprocessor has for a block of so many threads.
  explicit Registers(int threads);

  // Asks for `count` registers a thread of a warp, more or fewer than it has. Returns what is
  // wrong, or "". More are had once `try_take` succeeds.
  std::string ask(int warp, int count, bool is_more) const;
  // Gives registers back, or takes them if the block has them left.
  bool try_take(int warp, int count);
  // "it needs 6144 registers more, and the block has 4096 left"
  std::string account(int warp, int count) const;

 private:
  std::vector<int> counts_;  // a thread, by warp
  int left_ = 0;             // of all registers
};

}  // namespace diglot::interpreter
