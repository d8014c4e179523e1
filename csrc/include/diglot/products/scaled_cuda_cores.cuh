// Products of 8-bit floats with scales, of any size and strides, by fused multiply-adds of single
// threads. Twin of triton_ops/lib/products/scaled.py, by addresses. cuda_cores.cuh has the tiles.
#pragma once

#include "diglot/float8.cuh"
#include "diglot/products/cuda_cores.cuh"
#include "diglot/products/scales.cuh"

namespace diglot {

using ScaledFmaShape = FmaShape<4>;

// Computes the block's tile. Finished sums are scaled; with `has_blocks` the sums of each
// kScaledDepth products are, before they are added.
template <typename A, typename B, typename T>
DIGLOT_DEVICE void multiply_scaled_by_fma(const A* a, const B* b, const Scales& scale_a,
                                          const Scales& scale_b, const Epilogue<T>& epilogue,
                                          const FmaProduct& product, bool has_blocks) {
  using Shape = ScaledFmaShape;
  constexpr int kBlockSteps = kScaledDepth / Shape::kDepth;
  const int64_t index = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (index >= product.schedule.count()) return;
  const Tile tile = product.schedule.tile(index);
  const auto start_of = [](int number) { return int64_t{number} * Shape::kTile; };
  const int64_t row = start_of(tile.row), column = start_of(tile.column);
  float sums[Shape::kSide][Shape::kSide] = {}, parts[Shape::kSide][Shape::kSide] = {};
  // Calls visit(i, j, row, column) for each of a thread's sums that lies in C.
  const auto for_each_place = [&](auto visit) {
    const ThreadPlace place = place_of_thread();
    DIGLOT_UNROLL
    for (int j = 0; j < Shape::kSide; ++j) {
      const int64_t at = column + place_of<Shape>(j, place.column);
      DIGLOT_UNROLL
      for (int i = 0; i < Shape::kSide; ++i) {
        const int64_t line = row + place_of<Shape>(i, place.row);
        if (line < product.m && at < product.n) visit(i, j, line, at);
      }
    }
  };
  sum_products<Shape>(parts, a, b, product, row, column, [&](int step) {
    const bool ends_block = has_blocks && step % kBlockSteps == kBlockSteps - 1;
    if (!ends_block && step != product.steps - 1) return;
    const int block = has_blocks ? step / kBlockSteps : 0;
    const ScaleRun of_a = scale_a.run(row, block), of_b = scale_b.run(column, block);
    for_each_place([&](int i, int j, int64_t line, int64_t at) {
      const float scale = of_a.at(line - row) * of_b.at(at - column);
      sums[i][j] = fma(parts[i][j], scale, sums[i][j]);
      parts[i][j] = 0;
    });
  });
  const auto for_each = [&](auto visit) {
    for_each_place([&](int i, int j, int64_t line, int64_t at) { visit(sums[i][j], line, at); });
  };
  epilogue.combine(for_each);
  epilogue.store(false, for_each);
}

}  // namespace diglot
