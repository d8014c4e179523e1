// The products that a warpgroup has issued and that are not done. Each thread issues them by
// itself. A product may happen once all 128 threads have issued it: in order, and as late as a wait
// for it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "interpreter/accumulators.h"
#include "interpreter/async_queue.h"

namespace diglot::interpreter {

class Block;
struct Thread;

struct Instruction {
  Product product;
  int n;
  std::uint64_t a, b;  // descriptors
  bool accumulate;
  Place place;

  std::string name() const;
};

class Warpgroup {
 public:
  // A thread issues, with its part of A if that is in registers. Returns the fault, or "".
  std::string issue(Block& block, const Instruction& instruction, const std::uint32_t* registers,
                    float* d);
  // How many products are done.
  std::uint64_t done() const { return done_; }
  // Tells that the first `done` products are complete.
  Channel channel(std::uint64_t done) const {
    return {component_, static_cast<std::uint32_t>(done)};
  }
  // Of a product that is not done: "wgmma.m64n64k16 issued at ...: by 64 of 128 threads".
  std::string account() const;

 private:
  static constexpr int kWarps = kWarpgroup / kWarp;

  struct Step {
    Instruction instruction;
    int first_thread;  // that issued it
    int issued = 0;    // by how many threads
    std::vector<std::uint32_t> registers;
    std::shared_ptr<Sums> sums;
    Clock clocks[kWarps];  // of each warp's threads, when they issued it
  };

  std::string compare(const Instruction& instruction, const Step& step) const;
  void enqueue(Block& block);
  void run(Block& block, const Operation& operation);
  bool gather(Block& block, const Operation& operation, const Step& step, bool is_a);

  std::deque<Step> steps_;  // not done
  std::uint64_t done_ = 0;
  int component_ = -1;  // of the channel that tells of products, if races are looked for
  std::vector<char> chunks_;
  std::vector<float> a_, b_;
};

}  // namespace diglot::interpreter
