#include "interpreter/wgmma.h"

#include "interpreter/block.h"
#include "interpreter/work.h"

namespace diglot::interpreter {

namespace {

Accumulators& accumulators() {
  Thread& thread = current_block()->thread();
  if (thread.accumulators == nullptr) {
    thread.accumulators = std::make_unique<Accumulators>(thread.linear % kWarpgroup);
  }
  return *thread.accumulators;
}

Warpgroup& warpgroup(Place place) {
  Block& block = *current_block();
  const int threads = block.threads(), first = block.thread().linear / kWarpgroup * kWarpgroup;
  if (first + kWarpgroup > threads) {
    fail("wgmma in a warpgroup of " + std::to_string(threads - first) + " threads: the block has " +
             std::to_string(threads) + ", and a warpgroup 128",
         place);
  }
  return block.warpgroup(first / kWarpgroup);
}

// The thread's warpgroup, all of whose threads must execute the same.
Warpgroup& align(const char* what, Place place) {
  Warpgroup& group = warpgroup(place);
  const int thread = current_block()->thread().linear;
  const std::string fault = group.aligned.note(thread, what, place);
  if (!fault.empty()) fail(fault, place);
  return group;
}

void issue(const Instruction& instruction, const std::uint32_t* registers, float* d) {
  accumulators();
  check_fault(warpgroup(instruction.place).issue(*current_block(), instruction, registers, d),
              instruction.place);
  if (current_block()->thread().linear % kWarpgroup != 0) return;  // one thread counts for all
  const auto elements = static_cast<std::uint64_t>(kProductRows * instruction.n);
  add_work({0, 0, elements * static_cast<std::uint64_t>(instruction.product.depth())});
}

}  // namespace

void wgmma(const Product& product, int n, float* d, std::uint64_t a, std::uint64_t b,
           bool accumulate, Place place) {
  issue({product, n, a, b, accumulate, place}, nullptr, d);
}

void wgmma(const Product& product, int n, float* d, const std::uint32_t (&a)[4], std::uint64_t b,
           bool accumulate, Place place) {
  issue({product, n, 0, b, accumulate, place}, a, d);
}

void wgmma_fence(Place place) {
  align("wgmma_fence()", place);
  accumulators().fence();
}

void wgmma_commit(Place place) {
  align("wgmma_commit()", place);
  accumulators().commit();
}

void wgmma_wait(int newer, Place place) {
  Warpgroup& group = align("wgmma_wait()", place);
  Accumulators& own = accumulators();
  const std::uint64_t awaited = own.await(newer);
  if (awaited == 0) return;
  current_block()->wait_until([&group, awaited] { return group.done() >= awaited; }, "wgmma_wait()",
                              [&group] { return group.account(); }, place);
  current_block()->acquire(group.channel(awaited));
  check_fault(own.take(awaited), place);
}

}  // namespace diglot::interpreter
