// What a 32-bit address of shared memory names: a block of the cluster, and a place in its memory.
#pragma once

#include "interpreter/block.h"

namespace diglot::interpreter {

// An address in another block has the block's rank, plus one, in the bits from here on.
constexpr int kRankBit = 24;
constexpr std::uint32_t kWindowMask = (1u << kRankBit) - 1;

struct Target {
  Block* block;
  std::size_t offset;

  char* pointer() const { return block->shared().pointer(offset); }
};

// For the block that this OS thread runs. A fault ends the kernel.
Target target_of(std::uint32_t address, Place place);

}  // namespace diglot::interpreter
