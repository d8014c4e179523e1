// The block of the cluster, and the place in its memory, that a 32-bit shared address names.
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

// Completes an operation that writes bytes to a block and signals an mbarrier there: calls `move`,
// which writes them and returns its fault, or "". A fault ends the kernel.
void deliver(const Operation& operation, const Target& to, const Target& barrier,
             std::uint32_t bytes, const std::function<std::string(const Channel&)>& move);

}  // namespace diglot::interpreter
