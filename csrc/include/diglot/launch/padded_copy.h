// Host side of padded copies: when one pays, and where it lies. Twin of
// triton_ops/launch/padded_copy.py.
#pragma once

#include <algorithm>
#include <cstdint>

#include "diglot/launch/plan.h"
#include "diglot/launch/products.h"
#include "diglot/launch/tma_matrix.h"

namespace diglot {

// A line of a copy begins at a multiple of this: TMA then reads whole lines of the cache.
constexpr int64_t kLineBytes = 128;

// An operand's matrices, and the matrix that TMA reads instead of them.
struct CopiedMatrix {
  Address<char> source;
  int64_t inner_stride, outer_stride, batch_stride[kTmaBatchRank];  // in the source
  TmaMatrix copy;                                                   // not yet at its address

  int64_t matrices() const { return copy.batch[0] * copy.batch[1]; }
  int64_t bytes() const {
    return matrices() * copy.outer * copy.outer_stride * size_of(copy.dtype);
  }
};

// A copy of an operand whose lines are along `inner`.
inline CopiedMatrix copied_matrix(const Operand& operand, int64_t inner, int64_t inner_stride,
                                  int64_t outer, int64_t outer_stride,
                                  const ProductBatches& batches, int array) {
  const int64_t unit = kLineBytes / size_of(operand.dtype);
  const int64_t pitch = (inner + unit - 1) / unit * unit;
  CopiedMatrix copied{operand.as<char>(),
                      inner_stride,
                      outer_stride,
                      {},
                      {operand.dtype, {}, inner, outer, pitch, {}, {}}};
  int64_t step = pitch * outer;
  for (int d = 0; d < kTmaBatchRank; ++d) {
    const bool is_shared = d >= batches.rank || batches.strides[d][array] == 0;
    copied.copy.batch[d] = is_shared ? 1 : batches.sizes[d];
    copied.copy.batch_stride[d] = is_shared ? pitch : step;
    copied.batch_stride[d] = is_shared ? 0 : batches.strides[d][array];
    if (!is_shared) step *= batches.sizes[d];
  }
  return copied;
}

// A or B as wgmma reads it: where it lies, or a copy.
struct WgmmaOperand {
  TmaMatrix matrix;  // of a copy, once that is planned
  Major major;
  std::optional<CopiedMatrix> copied;

  int64_t copied_bytes() const { return copied ? copied->bytes() : 0; }
};

// Along K if both ways are possible; of float32 always, since wgmma takes nothing else. "Side" is M
// of A, and N of B. `array` finds the operand in the batch's layout, whose rank TMA takes.
inline WgmmaOperand wgmma_operand(const Operand& operand, int64_t side, int64_t side_stride,
                                  int64_t k, int64_t k_stride, const ProductBatches& batches,
                                  int array) {
  if (const auto found = tma_matrix(operand, k, k_stride, side, side_stride, batches, array)) {
    return {*found, Major::kK, {}};
  }
  const bool takes_both = size_of(operand.dtype) == 2;
  if (takes_both) {
    const auto found = tma_matrix(operand, side, side_stride, k, k_stride, batches, array);
    if (found) return {*found, Major::kMn, {}};
  }
  // Neighbours stay neighbours, if they may.
  const bool is_along_k = k_stride == 1 || side_stride != 1 || !takes_both;
  const CopiedMatrix copied =
      is_along_k ? copied_matrix(operand, k, k_stride, side, side_stride, batches, array)
                 : copied_matrix(operand, side, side_stride, k, k_stride, batches, array);
  return {copied.copy, is_along_k ? Major::kK : Major::kMn, copied};
}

// Whether tensor cores are worth copies of these bytes. A copy takes the time of its launch, and
// that of its bytes, which the GPU reads and writes. The kernel without tensor cores takes the
// time of the multiply-adds of the busiest SM.
inline bool is_worth_copies(const Device& device, const Product& product, int64_t bytes) {
  // Multiply-adds of an H200's SM in the time of a launch, 2.5 microseconds. And those of all its
  // SMs in the time of a byte, at 4 TB/s.
  constexpr int64_t kOfLaunch = 1 << 18, kOfByte = 4, kTile = 64;
  const auto tiles = [](int64_t size) { return (size + kTile - 1) / kTile; };
  const int64_t multiprocessors = std::max(device.multiprocessors(), 1);
  const int64_t all = tiles(product.planned_m()) * tiles(product.n) * product.batches.numel;
  const int64_t busiest = (all + multiprocessors - 1) / multiprocessors * kTile * kTile * product.k;
  return busiest > kOfLaunch + 2 * bytes * kOfByte / multiprocessors;
}

// Plans one launch that copies A, B or both, behind the scratch that the plan already needs. TMA
// then reads the copies. csrc/ops/sm_90a/padded_copy.cu has it, with the kernels.
void plan_copies(Planner& planner, WgmmaOperand& a, WgmmaOperand& b);

// The same, where there are copies. Returns what they add to the variant's name.
inline const char* plan_padded_copies(Planner& planner, WgmmaOperand& a, WgmmaOperand& b) {
  if (!a.copied && !b.copied) return "";
  plan_copies(planner, a, b);
  if (a.copied) return b.copied ? ", copies of A and B" : ", copy of A";
  return ", copy of B";
}

}  // namespace diglot
