// Products of 8-bit floats with scales on Hopper's tensor cores. Twin of
// triton_ops/lib/products/scaled.py. docs/products.md steps through it.
//
// The kernel is that of tensor_cores.cuh, with two differences. wgmma takes 8-bit floats along K
// alone. And its sums keep about 14 bits. So they are added to sums in float32 every 128 products,
// one stage of the ring, unless the caller asks for the fast form.
#pragma once

#include "diglot/products/scales.cuh"
#include "diglot/products/tensor_cores.cuh"

namespace diglot {

// Tiles of 128 x kColumns elements of C. A stage is as many bytes deep as one of 16-bit elements.
template <int kColumns, Accumulation kAccumulation_>
struct ScaledShape : WgmmaShape<bfloat16, kColumns> {
  static constexpr Accumulation kAccumulation = kAccumulation_;
  static constexpr int kDepth = kScaledDepth;

  template <MmaType kType>
  using TileA = SmemTile<kType, Major::kK, Swizzle::k128, 128, kDepth>;
  template <MmaType kType>
  using TileB = SmemTile<kType, Major::kK, Swizzle::k128, kColumns, kDepth>;
};

struct ScaledWgmmaProduct {
  int steps;  // along K
  bool is_a_e5m2, is_b_e5m2;
  TileSchedule schedule;
  bool is_stored_by_tma;  // otherwise threads store C
};

// Fills the ring for all tiles of the block.
template <typename Shape>
DIGLOT_DEVICE void produce_scaled_stages(typename Shape::Shared& shared, Mbarrier* full,
                                         Mbarrier* empty, const TensorMap& a, const TensorMap& b,
                                         const ScaledWgmmaProduct& product) {
  Ring<Shape::kStages> ring;
  for (int64_t index = blockIdx.x; index < product.schedule.count(); index += gridDim.x) {
    const Tile tile = product.schedule.tile(index);
    for (int step = 0; step < product.steps; ++step) {
      empty[ring.stage].wait(ring.parity ^ 1);
      full[ring.stage].arrive_expect(Shape::kBytesA + Shape::kBytesB);
      const int depth = step * Shape::kDepth;
      tma_load(a, shared.a[ring.stage], full[ring.stage], {depth, tile.row * Shape::kRows, 0, 0});
      tma_load(b, shared.b[ring.stage], full[ring.stage],
               {depth, tile.column * Shape::kColumns, 0, 0});
      ring.advance();
    }
  }
}

// Adds the products of all stages of a tile, 64 rows of it. By kFast a stage is released while the
// next one's products run. Otherwise add(sums, part, step) adds those of a stage in float32, and
// the other warpgroup's products run meanwhile.
template <typename Shape, MmaType kTypeA, MmaType kTypeB, typename Add>
DIGLOT_DEVICE void multiply_scaled_stages(float (&sums)[Shape::kSums], Ring<Shape::kStages>& ring,
                                          typename Shape::Shared& shared, Mbarrier* full,
                                          Mbarrier* empty, int first_row, int steps, Add add) {
  using TileA = typename Shape::template TileA<kTypeA>;
  using TileB = typename Shape::template TileB<kTypeB>;
  constexpr bool kIsFast = Shape::kAccumulation == Accumulation::kFast;
  const bool is_speaker = threadIdx.x % kWarpgroupThreads == 0;
  const auto multiply = [&](float (&d)[Shape::kSums]) {
    const uint32_t a = shared_address(shared.a[ring.stage]);
    const uint32_t b = shared_address(shared.b[ring.stage]);
    fence_accumulators(d);
    wgmma_fence();
    DIGLOT_UNROLL
    for (int k = 0; k < Shape::kDepth; k += depth_of(kTypeA)) {
      wgmma<kTypeA, kTypeB>(d, TileA::descriptor(a, first_row, k), TileB::descriptor(b, 0, k),
                            kIsFast || k > 0);
    }
    wgmma_commit();
  };
  DIGLOT_UNROLL
  for (float& sum : sums) sum = 0;
  if constexpr (kIsFast) {
    int previous = 0;
    for (int step = 0; step < steps; ++step) {
      full[ring.stage].wait(ring.parity);
      multiply(sums);
      wgmma_wait<1>();
      if (step > 0 && is_speaker) empty[previous].arrive();
      previous = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    fence_accumulators(sums);
    if (is_speaker) empty[previous].arrive();
  } else {
    float part[Shape::kSums] = {};
    for (int step = 0; step < steps; ++step) {
      full[ring.stage].wait(ring.parity);
      multiply(part);
      wgmma_wait<0>();
      fence_accumulators(part);
      if (is_speaker) empty[ring.stage].arrive();
      add(sums, part, step);
      ring.advance();
    }
  }
}

// The same for the operands' types: one main loop for each pair.
template <typename Shape, typename Add>
DIGLOT_DEVICE void multiply_scaled_stages(float (&sums)[Shape::kSums], Ring<Shape::kStages>& ring,
                                          typename Shape::Shared& shared, Mbarrier* full,
                                          Mbarrier* empty, int first_row,
                                          const ScaledWgmmaProduct& product, Add add) {
  const auto multiply = [&](auto type_a, auto type_b) {
    multiply_scaled_stages<Shape, decltype(type_a)::value, decltype(type_b)::value>(
        sums, ring, shared, full, empty, first_row, product.steps, add);
  };
  constexpr std::integral_constant<MmaType, MmaType::kE4m3> kE4m3;
  constexpr std::integral_constant<MmaType, MmaType::kE5m2> kE5m2;
  if (product.is_a_e5m2) {
    multiply(kE5m2, kE4m3);
  } else {
    product.is_b_e5m2 ? multiply(kE4m3, kE5m2) : multiply(kE4m3, kE4m3);
  }
}

// Multiplies, scales and stores all tiles of the block.
template <typename T, typename Shape>
DIGLOT_DEVICE void consume_scaled_stages(typename Shape::Shared& shared, Mbarrier* full,
                                         Mbarrier* empty, const TensorMap& map_c,
                                         const Scales& scale_a, const Scales& scale_b,
                                         const Epilogue<T>& epilogue,
                                         const ScaledWgmmaProduct& product) {
  constexpr int kSums = Shape::kSums;
  constexpr bool kHasBlocks = Shape::kAccumulation == Accumulation::kBlocks;
  const int consumer = consumer_number();
  const int first_row = consumer * Shape::kConsumerRows;
  const int m = static_cast<int>(epilogue.m), n = static_cast<int>(epilogue.n);
  Ring<Shape::kStages> ring;
  TmaParts<Shape> stored{shared.c[consumer], 1 + consumer};
  for (int64_t index = blockIdx.x; index < product.schedule.count(); index += gridDim.x) {
    const Tile tile = product.schedule.tile(index);
    const int row = tile.row * Shape::kRows + first_row, column = tile.column * Shape::kColumns;
    const auto scale = [&](int block, auto visit) {
      for_each_scale<kSums>(scale_a.run(row, block), scale_b.run(column, block), m - row,
                            n - column, visit);
    };
    const auto add = [&](float (&sums)[kSums], float (&part)[kSums], int block) {
      if constexpr (kHasBlocks) {
        scale(block, [&](int i, float factor) { sums[i] = fma(part[i], factor, sums[i]); });
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kSums; ++i) sums[i] += part[i];
      }
    };
    float sums[kSums];
    multiply_scaled_stages<Shape>(sums, ring, shared, full, empty, first_row, product, add);
    if constexpr (!kHasBlocks) scale(0, [&](int i, float factor) { sums[i] *= factor; });
    TileBias<T, Shape> bias;
    bias.load(epilogue, row, column);
    bias.add(sums, epilogue);
    if constexpr (sizeof(T) == 2) {
      if (product.is_stored_by_tma) {
        store_by_tma<T, Shape>(sums, stored, map_c, row, column, BatchPlace{});
        continue;
      }
    }
    epilogue.store(false, [&](auto visit) { for_each_sum<false>(sums, row, column, m, n, visit); });
  }
  // A block's shared memory ends with the block.
  if (threadIdx.x % kWarpgroupThreads == 0) wait_bulk_groups_read<0>();
}

template <typename T, typename Shape>
DIGLOT_DEVICE void multiply_scaled_by_wgmma(const TensorMap& a, const TensorMap& b,
                                            const TensorMap& map_c, const Scales& scale_a,
                                            const Scales& scale_b, const Epilogue<T>& epilogue,
                                            const ScaledWgmmaProduct& product) {
  share_out<Shape>(
      [&](auto& shared, Mbarrier* full, Mbarrier* empty) {
        produce_scaled_stages<Shape>(shared, full, empty, a, b, product);
      },
      [&](auto& shared, Mbarrier* full, Mbarrier* empty) {
        consume_scaled_stages<T, Shape>(shared, full, empty, map_c, scale_a, scale_b, epilogue,
                                        product);
      });
}

}  // namespace diglot
