#include "interpreter/target.h"

#include "interpreter/memory.h"

namespace diglot::interpreter {

Target target_of(std::uint32_t address, Place place) {
  Block& self = *current_block();
  const std::uint32_t rank = address >> kRankBit;
  Block* const block = rank == 0 ? &self : self.cluster().block(rank - 1);
  if (block == nullptr) {
    fail("the shared memory of a block that may not run yet: the cluster's barrier is missing",
         place);
  }
  char* const pointer = block->shared().at(address & kWindowMask);
  if (pointer == nullptr) {
    fail("there is no shared memory at the address " + std::to_string(address), place);
  }
  return {block, block->shared().offset(pointer)};
}

void deliver(const Operation& operation, const Target& to, const Target& barrier,
             std::uint32_t bytes, const std::function<std::string(const Channel&)>& move) {
  Block& block = *to.block;
  if (block.live_threads() == 0) {
    return block.fail_operation("its target has ended: it leaves its cluster early", operation);
  }
  Mbarriers& barriers = block.mbarriers();
  const Channel channel = barriers.channel(barrier.offset);
  std::string fault = find_fault(block, operation, channel, to.pointer(), bytes, Access::kWrite);
  if (fault.empty()) fault = move(channel);
  if (fault.empty()) {
    fault = barriers.complete(barrier.offset, bytes, block.completed(operation, channel));
  }
  if (!fault.empty()) block.fail_operation(fault, operation);
}

}  // namespace diglot::interpreter
