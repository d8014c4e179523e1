// Host side of products on Hopper's tensor cores, whichever kernel computes them: the operands as
// TMA reads and stores them, and what a kernel knows of the product.
#pragma once

#include <optional>

#include "diglot/launch/padded_copy.h"
#include "diglot/launch/products.h"
#include "diglot/products/tensor_cores.cuh"

namespace diglot {

// Nanoseconds of an H200 for a column of 128 rows: of a step at full speed, and of a tile's end.
constexpr double kWgmmaStep = 2.5, kWgmmaEnd = 10;

struct WgmmaOperands {
  WgmmaOperand a, b;
  std::optional<TmaMatrix> c;  // if TMA can store it

  // The matrix of the map of C. Where TMA does not store C, nobody uses that map.
  const TmaMatrix& stored() const { return c ? *c : a.matrix; }
};

// The three operands; nothing if TMA cannot load A or B, and copies do not pay.
inline std::optional<WgmmaOperands> wgmma_operands(const Device& device, const Product& product) {
  const Product::Batches& batches = product.batches;
  if (batches.rank > kTmaBatchRank) return {};
  WgmmaOperands operands{wgmma_operand(*product.a, product.m, product.of_a.row, product.k,
                                       product.of_a.column, batches, Product::kA),
                         wgmma_operand(*product.b, product.n, product.of_b.column, product.k,
                                       product.of_b.row, batches, Product::kB),
                         tma_matrix(*product.c, product.n, product.of_c.column, product.m,
                                    product.of_c.row, batches, Product::kC)};
  const Operand* const before = product.around.before;
  if (before != nullptr && !before->is_aligned(kTmaUnit)) operands.c.reset();
  const int64_t copied = operands.a.copied_bytes() + operands.b.copied_bytes();
  if (copied > 0 && !is_worth_copies(device, product, copied)) return {};
  return operands;
}

// sharing, meets: as in WgmmaProduct.
inline WgmmaProduct wgmma_product(const Product& product, const WgmmaOperands& operands,
                                  const SplitSchedule& schedule, Sharing sharing = {},
                                  bool meets = false) {
  const Product::Batches& batches = product.batches;
  WgmmaProduct given{operands.a.major,
                     operands.b.major,
                     schedule,
                     sharing,
                     meets,
                     batches.rank > 0 ? batches.sizes[0] : 1,
                     operands.a.matrix.steps(),
                     operands.b.matrix.steps(),
                     operands.stored().steps(),
                     operands.c.has_value(),
                     {},
                     {}};
  for (int d = 0; d < batches.rank; ++d) {
    given.batch_strides[d] = batches.strides[d][Product::kC];
    given.input_batch_strides[d] = batches.strides[d][Product::kInput];
  }
  return given;
}

}  // namespace diglot
