// The registers of a block, which warps give back and ask for again: setmaxnreg. PTX ISA,
// "setmaxnreg".
#pragma once

#include <string>
#include <vector>

namespace diglot::interpreter {

class Registers {
 public:
  // Each thread begins with an equal share of a multiprocessor's registers.
  explicit Registers(int threads);

  // Checks that a warp may ask for `count` registers a thread, more or fewer than it has. Returns
  // the fault, or "". The warp has them once `try_take` succeeds.
  std::string ask(int warp, int count, bool is_more) const;
  // Gives registers back, or takes them if the block has them left.
  bool try_take(int warp, int count);
  // "it needs 6144 registers more, and the block has 4096 left"
  std::string account(int warp, int count) const;

 private:
  std::vector<int> counts_;  // a thread, by warp
  int left_ = 0;             // registers that warps gave back
};

}  // namespace diglot::interpreter
