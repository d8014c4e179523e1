// Bulk copies, which the tensor memory accelerator (TMA) makes while the threads go on: boxes of a
// tensor that a tensor map describes (tensor_map.h), and plain stretches of memory. One thread
// issues a copy for its block. They need compute capability 9.0. PTX ISA, "cp.async.bulk".
//
// A load signals an mbarrier (sync/mbarrier.cuh), which must expect the bytes of the whole box,
// even of elements outside the tensor. A store belongs to a group of the thread that issued it:
//
//   fence_async_proxy();       // each thread that has written the tile
//   __syncthreads();
//   if (threadIdx.x == 0) {
//     tma_store(map, tile, {column, row});
//     commit_bulk_group();
//     wait_bulk_groups_read<0>();  // from here on the tile may be overwritten
//   }
//
// Coordinates have the innermost dimension first, as in the tensor's description.
#pragma once

#include "diglot/mma/tensor_map.h"
#include "diglot/sync/mbarrier.cuh"

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/bulk.h"
#endif

namespace diglot {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define DIGLOT_HAS_TMA 1
#endif

// Stops a kernel that was compiled for a device without bulk copies.
DIGLOT_DEVICE void refuse_tma() {
#if defined(__CUDA_ARCH__)
  __trap();
#endif
}

// An instruction on a tensor: its name has the rank, and operands 0 to 4 are coordinates.
#define DIGLOT_TENSOR_CASE(RANK, COORDINATES, NAME, OPERANDS, END, ...)                    \
  case RANK:                                                                               \
    asm volatile(NAME "." #RANK "d" OPERANDS COORDINATES END                               \
                 :                                                                         \
                 : "r"(begin.at[0]), "r"(begin.at[1]), "r"(begin.at[2]), "r"(begin.at[3]), \
                   "r"(begin.at[4]), __VA_ARGS__                                           \
                 : "memory");                                                              \
    break;
#define DIGLOT_TENSOR_INSTRUCTION(...)                         \
  switch (begin.rank) {                                        \
    DIGLOT_TENSOR_CASE(1, "{%0}", __VA_ARGS__)                 \
    DIGLOT_TENSOR_CASE(2, "{%0, %1}", __VA_ARGS__)             \
    DIGLOT_TENSOR_CASE(3, "{%0, %1, %2}", __VA_ARGS__)         \
    DIGLOT_TENSOR_CASE(4, "{%0, %1, %2, %3}", __VA_ARGS__)     \
    DIGLOT_TENSOR_CASE(5, "{%0, %1, %2, %3, %4}", __VA_ARGS__) \
  }

// --- boxes of a tensor ---------------------------------------------------------------------------

// Loads a box. `tile` begins at a multiple of 128 bytes; with a swizzle, at a multiple of 8 spans.
// The first form takes shared addresses of the tile and the barrier.
DIGLOT_DEVICE void tma_load(const TensorMap& map, uint32_t to, uint32_t full, Coordinates begin,
                            [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::load_tensor(&map, begin, to, full, 0, place);
#elif defined(DIGLOT_HAS_TMA)
  DIGLOT_TENSOR_INSTRUCTION("cp.async.bulk.tensor",
                            ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%5], [%6, ",
                            "], [%7];", "r"(to), "l"(&map), "r"(full))
#else
  refuse_tma();
#endif
}
DIGLOT_DEVICE void tma_load(const TensorMap& map, void* tile, Mbarrier& barrier, Coordinates begin,
                            Place place = Place::here()) {
  tma_load(map, shared_address(tile, place), shared_address(&barrier, place), begin, place);
}

// Loads a box to the same place in each block of the cluster whose rank's bit is set, and signals
// the mbarrier at the same place there.
DIGLOT_DEVICE void tma_load_multicast(const TensorMap& map, uint32_t to, uint32_t full,
                                      Coordinates begin, uint16_t blocks,
                                      [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::load_tensor(&map, begin, to, full, blocks, place);
#elif defined(DIGLOT_HAS_TMA)
  DIGLOT_TENSOR_INSTRUCTION(
      "cp.async.bulk.tensor",
      ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%5], [%6, ",
      "], [%7], %8;", "r"(to), "l"(&map), "r"(full), "h"(blocks))
#else
  refuse_tma();
#endif
}
DIGLOT_DEVICE void tma_load_multicast(const TensorMap& map, void* tile, Mbarrier& barrier,
                                      Coordinates begin, uint16_t blocks,
                                      Place place = Place::here()) {
  tma_load_multicast(map, shared_address(tile, place), shared_address(&barrier, place), begin,
                     blocks, place);
}

// Stores a box, without its elements outside the tensor. Coordinates must not be negative.
DIGLOT_DEVICE void tma_store(const TensorMap& map, const void* tile, Coordinates begin,
                             [[maybe_unused]] Place place = Place::here()) {
  [[maybe_unused]] const uint32_t from = shared_address(tile, place);
#if defined(DIGLOT_INTERPRETER)
  interpreter::store_tensor(&map, begin, from, place);
#elif defined(DIGLOT_HAS_TMA)
  DIGLOT_TENSOR_INSTRUCTION("cp.async.bulk.tensor", ".global.shared::cta.tile.bulk_group [%5, ",
                            "], [%6];", "l"(&map), "r"(from))
#else
  refuse_tma();
#endif
}

// Combines a box with the tensor, each element atomically. The types of elements:
// - sums: uint32, int32, uint64, float16, bfloat16, float32;
// - minima and maxima: integers of 32 or 64 bits, float16, bfloat16;
// - bitwise operations: integers of 32 or 64 bits.
template <Reduction kReduction>
DIGLOT_DEVICE void tma_reduce(const TensorMap& map, const void* tile, Coordinates begin,
                              [[maybe_unused]] Place place = Place::here()) {
  [[maybe_unused]] const uint32_t from = shared_address(tile, place);
#if defined(DIGLOT_INTERPRETER)
  interpreter::reduce_tensor(&map, begin, from, kReduction, place);
#elif defined(DIGLOT_HAS_TMA)
#define DIGLOT_TENSOR_REDUCTION(NAME)                                                         \
  DIGLOT_TENSOR_INSTRUCTION("cp.reduce.async.bulk.tensor",                                    \
                            ".global.shared::cta." NAME ".tile.bulk_group [%5, ", "], [%6];", \
                            "l"(&map), "r"(from))
  if constexpr (kReduction == Reduction::kAdd) {
    DIGLOT_TENSOR_REDUCTION("add")
  } else if constexpr (kReduction == Reduction::kMin) {
    DIGLOT_TENSOR_REDUCTION("min")
  } else if constexpr (kReduction == Reduction::kMax) {
    DIGLOT_TENSOR_REDUCTION("max")
  } else if constexpr (kReduction == Reduction::kAnd) {
    DIGLOT_TENSOR_REDUCTION("and")
  } else if constexpr (kReduction == Reduction::kOr) {
    DIGLOT_TENSOR_REDUCTION("or")
  } else {
    DIGLOT_TENSOR_REDUCTION("xor")
  }
#undef DIGLOT_TENSOR_REDUCTION
#else
  refuse_tma();
#endif
}

// Prefetches a box to the L2 cache.
DIGLOT_DEVICE void tma_prefetch(const TensorMap& map, Coordinates begin,
                                [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::prefetch_tensor(&map, begin, place);
#elif defined(DIGLOT_HAS_TMA)
  DIGLOT_TENSOR_INSTRUCTION("cp.async.bulk.prefetch.tensor", ".L2.global.tile [%5, ", "];",
                            "l"(&map))
#else
  refuse_tma();
#endif
}

// Prefetches the map itself.
DIGLOT_DEVICE void tma_prefetch_map(const TensorMap& map,
                                    [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::check_tensor_map(&map, place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
#else
  refuse_tma();
#endif
}

#undef DIGLOT_TENSOR_INSTRUCTION
#undef DIGLOT_TENSOR_CASE

// --- plain copies: addresses and sizes are multiples of 16 bytes ---------------------------------

DIGLOT_DEVICE void bulk_load(void* shared, const void* global, uint32_t bytes, Mbarrier& barrier,
                             [[maybe_unused]] Place place = Place::here()) {
  [[maybe_unused]] const uint32_t to = shared_address(shared, place);
  [[maybe_unused]] const uint32_t full = shared_address(&barrier, place);
#if defined(DIGLOT_INTERPRETER)
  interpreter::bulk_load(global, bytes, to, full, 0, place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(to), "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(full)
      : "memory");
#else
  refuse_tma();
#endif
}

// The same for several blocks, as tma_load_multicast.
DIGLOT_DEVICE void bulk_load_multicast(void* shared, const void* global, uint32_t bytes,
                                       Mbarrier& barrier, uint16_t blocks,
                                       [[maybe_unused]] Place place = Place::here()) {
  [[maybe_unused]] const uint32_t to = shared_address(shared, place);
  [[maybe_unused]] const uint32_t full = shared_address(&barrier, place);
#if defined(DIGLOT_INTERPRETER)
  interpreter::bulk_load(global, bytes, to, full, blocks, place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;"
      :
      : "r"(to), "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(full), "h"(blocks)
      : "memory");
#else
  refuse_tma();
#endif
}

// Sends this block's shared memory to an address of another block of the cluster
// (cluster_address), and signals an mbarrier there.
DIGLOT_DEVICE void bulk_send(uint32_t to, const void* shared, uint32_t bytes, uint32_t barrier,
                             [[maybe_unused]] Place place = Place::here()) {
  [[maybe_unused]] const uint32_t from = shared_address(shared, place);
#if defined(DIGLOT_INTERPRETER)
  interpreter::bulk_send(from, bytes, to, barrier, place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];"
      :
      : "r"(to), "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
#else
  refuse_tma();
#endif
}

DIGLOT_DEVICE void bulk_store(void* global, const void* shared, uint32_t bytes,
                              [[maybe_unused]] Place place = Place::here()) {
  [[maybe_unused]] const uint32_t from = shared_address(shared, place);
#if defined(DIGLOT_INTERPRETER)
  interpreter::bulk_store(global, bytes, from, place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(__cvta_generic_to_global(global)), "r"(from), "r"(bytes)
               : "memory");
#else
  refuse_tma();
#endif
}

DIGLOT_DEVICE void bulk_prefetch(const void* global, uint32_t bytes) {
#if defined(DIGLOT_HAS_TMA)
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
#endif
}

// --- groups of stores and reductions -------------------------------------------------------------

// Commits what the thread has issued since its last call as one group.
DIGLOT_DEVICE void commit_bulk_group([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::commit_bulk_group(place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile("cp.async.bulk.commit_group;" : : : "memory");
#else
  refuse_tma();
#endif
}

// Waits until all groups of the thread but the latest kNewer have written their destinations.
template <int kNewer>
DIGLOT_DEVICE void wait_bulk_groups([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::wait_bulk_groups(kNewer, false, place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile("cp.async.bulk.wait_group %0;" : : "n"(kNewer) : "memory");
#else
  refuse_tma();
#endif
}

// Waits only until they have read their sources, which may then be overwritten.
template <int kNewer>
DIGLOT_DEVICE void wait_bulk_groups_read([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::wait_bulk_groups(kNewer, true, place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(kNewer) : "memory");
#else
  refuse_tma();
#endif
}

// --- maps that a kernel writes to global memory --------------------------------------------------

// Orders a thread's writes of a map before uses of it that follow an acquiring fence. The
// interpreter refuses these fences. PTX ISA, "fence.proxy.tensormap".
DIGLOT_DEVICE void fence_tensor_map_release([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::refuse_written_map(place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" : : : "memory");
#endif
}
DIGLOT_DEVICE void fence_tensor_map_acquire([[maybe_unused]] const TensorMap& map,
                                            [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::refuse_written_map(place);
#elif defined(DIGLOT_HAS_TMA)
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" : : "l"(&map) : "memory");
#endif
}

#undef DIGLOT_HAS_TMA

}  // namespace diglot
