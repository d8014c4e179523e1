#include "interpreter/target.h"

namespace diglot::interpreter {

Target target_of(std::uint32_t address, Place place) {
  Block& self = *current_block();
  const std::uint32_t rank = address >> kRankBit;
  Block* const block = rank == 0 ? &self : self.cluster().block(rank - 1);
  if (block == nullptr) {
    self.fail("the shared memory of a block that may not run yet: the cluster's barrier is missing",
              {nullptr, place});
  }
  char* const pointer = block->shared().at(address & kWindowMask);
  if (pointer == nullptr) {
    self.fail("there is no shared memory at the address " + std::to_string(address),
              {nullptr, place});
  }
  return {block, block->shared().offset(pointer)};
}

}  // namespace diglot::interpreter
