// What the steps of the ladder share: the product, a stage of tiles, and stores by threads. Step N
// is the file N_*.cu, and defines stepN::multiply. docs/ladder.md goes up the ladder.
#pragma once

#include "diglot/launch/launch.h"
#include "diglot/math.cuh"
#include "diglot/mma/tma.cuh"
#include "diglot/mma/warpgroup.cuh"
#include "diglot/mma/wgmma.cuh"
#include "diglot/products/schedule.cuh"
#include "diglot/types.cuh"
#include "diglot/vector_access.cuh"

namespace ladder {

using namespace diglot;

// C = A B, of row-major bfloat16 matrices of m x k, k x n and m x n. n and k are multiples of 8,
// and the matrices begin at multiples of 16 bytes.
struct Product {
  const bfloat16* a;
  const bfloat16* b;
  bfloat16* c;
  int m, n, k;
};

inline int tiles_of(int elements, int tile) { return (elements + tile - 1) / tile; }

// A stage: the tiles of A and B that a block multiplies in one step along K.
constexpr MmaType kType = MmaType::kBfloat16;
constexpr int kDepth = 64;  // along K
constexpr int kLine = 64;   // elements of the 128 bytes that the swizzle spans
template <int kRows, int kColumns>
struct Stage {
  using A = SmemTile<kType, Major::kK, Swizzle::k128, kRows, kDepth>;
  using B = SmemTile<kType, Major::kMn, Swizzle::k128, kColumns, kDepth>;
  static constexpr int kBytes = A::kBytes + B::kBytes;

  alignas(1024) char a[A::kBytes];
  alignas(1024) char b[B::kBytes];

  // Has TMA load both. One thread calls it.
  DIGLOT_DEVICE void load(Mbarrier& full, const TensorMap& map_a, const TensorMap& map_b, int row,
                          int column, int depth) {
    full.arrive_expect(kBytes);
    tma_load(map_a, a, full, {depth, row});
    DIGLOT_UNROLL
    for (int panel = 0; panel < B::kPanels; ++panel) {
      tma_load(map_b, b + panel * B::kPanelBytes, full, {column + panel * kLine, depth});
    }
  }

  // Issues the products of 64 rows of A, from `first_row` on, and all columns of B.
  DIGLOT_DEVICE void multiply(float (&sums)[kColumns / 2], int first_row) const {
    const uint32_t from_a = shared_address(a), from_b = shared_address(b);
    wgmma_fence();
    DIGLOT_UNROLL
    for (int k = 0; k < kDepth; k += depth_of(kType)) {
      wgmma<kType, kType, Major::kK, Major::kMn>(sums, A::descriptor(from_a, first_row, k),
                                                 B::descriptor(from_b, 0, k), true);
    }
    wgmma_commit();
  }
};

// Describes a matrix to TMA, in boxes of a line's columns.
inline TensorMap map_of(const bfloat16* matrix, int rows, int columns, int box_rows) {
  const auto width = static_cast<uint64_t>(columns);
  return tensor_map({TensorType::kBfloat16,
                     matrix,
                     {width, static_cast<uint64_t>(rows)},
                     {width * sizeof(bfloat16)},
                     {kLine, static_cast<uint32_t>(box_rows)},
                     {},
                     Swizzle::k128});
}

// The number of this thread's warpgroup. By a shuffle, so that the compiler knows that a warp has
// one number.
DIGLOT_DEVICE int warpgroup() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
}

// Two neighbours of C.
DIGLOT_DEVICE uint32_t pack(float first, float second) {
  const bfloat16 values[] = {convert<bfloat16>(first), convert<bfloat16>(second)};
  uint32_t word;
  memcpy(&word, values, sizeof(word));
  return word;
}

// Stores a warpgroup's 64 rows of C from registers: each thread two neighbours at a time.
template <int kSums>
DIGLOT_DEVICE void store_by_threads(const float (&sums)[kSums], const Product& product, int row,
                                    int column) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  DIGLOT_UNROLL
  for (int i = 0; i < kSums; i += 2) {
    const int line = row + accumulator_row(thread, i);
    const int first = column + accumulator_column(thread, i);
    if (line >= product.m || first >= product.n) continue;
    *reinterpret_cast<uint32_t*>(product.c + int64_t{line} * product.n + first) =
        pack(sums[i], sums[i + 1]);
  }
}

}  // namespace ladder
