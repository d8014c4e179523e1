// What kernels call for bulk copies: the functions of include/diglot/mma/tma.cuh in place of PTX.
// Shared memory is named by 32-bit addresses.
#pragma once

#include <cstdint>

#include "diglot/mma/tensor_description.h"
#include "interpreter/interpreter.h"

namespace diglot::interpreter {

// The blocks of the cluster that a load goes to, one bit each; 0 means the block of the address.
using BlockMask = std::uint16_t;

// Loads signal an mbarrier of the block they go to.
void load_tensor(const void* map, const Coordinates& begin, std::uint32_t to, std::uint32_t barrier,
                 BlockMask mask, Place place);
void bulk_load(const void* global, std::uint32_t bytes, std::uint32_t to, std::uint32_t barrier,
               BlockMask mask, Place place);
// From this block's shared memory to another's.
void bulk_send(std::uint32_t from, std::uint32_t bytes, std::uint32_t to, std::uint32_t barrier,
               Place place);

// Stores belong to a group of the thread.
void store_tensor(const void* map, const Coordinates& begin, std::uint32_t from, Place place);
void reduce_tensor(const void* map, const Coordinates& begin, std::uint32_t from,
                   Reduction reduction, Place place);
void bulk_store(void* global, std::uint32_t bytes, std::uint32_t from, Place place);
void commit_bulk_group(Place place);
void wait_bulk_groups(int newer, bool only_read, Place place);

// A hint; its operands are checked.
void prefetch_tensor(const void* map, const Coordinates& begin, Place place);
void check_tensor_map(const void* map, Place place);

}  // namespace diglot::interpreter
