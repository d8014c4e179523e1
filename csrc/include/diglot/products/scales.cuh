// Scales of the operands of a product: of rows of A and columns of B, or of blocks of 128 along K.
// Twin of triton_ops/lib/products/scales.py.
#pragma once

#include "diglot/math.cuh"
#include "diglot/mma/operands.h"
#include "diglot/mma/warpgroup.cuh"

namespace diglot {

// Elements along K whose products have one scale, and are added in float32 by exact sums.
constexpr int kScaledShift = 7, kScaledDepth = 1 << kScaledShift;

// How sums grow along K. kFast: tensor cores add all products. kExact: the sums of kScaledDepth
// products are added in float32. kBlocks: so they are, times the scales of their blocks.
enum class Accumulation { kFast, kExact, kBlocks };

// The scales of some neighbouring rows of A, or columns of B, in one block along K.
struct ScaleRun {
  const float* data;
  int64_t step;  // from a row's scale to the next; 0 where one serves all

  DIGLOT_DEVICE float at(int64_t row) const { return data[row * step]; }
};

// The scales of A's rows, or of B's columns.
struct Scales {
  const float* data;
  int64_t side_stride, depth_stride;  // 0 where one scale serves all
  int shift;                          // 2^shift neighbours share a scale

  // Those from row `first` on, of rows that share a scale or have one each.
  DIGLOT_DEVICE ScaleRun run(int64_t first, int64_t block) const {
    return {data + (first >> shift) * side_stride + block * depth_stride,
            shift == 0 ? side_stride : 0};
  }
};

}  // namespace diglot
