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
template <int kColumns, Accumulation kAccumulation_, bool kTakesTurns = false>
struct ScaledShape : WgmmaShape<bfloat16, kColumns, false, true, kTakesTurns> {
  static constexpr Accumulation kAccumulation = kAccumulation_;
  static_assert(!kTakesTurns || kAccumulation == Accumulation::kFast);
  static constexpr int kBytes = 1, kDepth = kScaledDepth;  // of operands
  static constexpr bool kShares = false;
  // Of exact sums, a consumer has two groups of products under way, and adds the first one's sums
  // while tensor cores make the second. They are two stages, or halves of a wide tile's columns.
  static constexpr bool kIsExact = kAccumulation == Accumulation::kExact;
  static constexpr bool kHasPairs = kIsExact && kColumns == 128,
                        kHasHalves = kIsExact && kColumns > 128;

  template <MmaType kType>
  using TileA = SmemTile<kType, Major::kK, Swizzle::k128, ScaledShape::kRows, kDepth>;
  template <MmaType kType>
  using TileB = SmemTile<kType, Major::kK, Swizzle::k128, kColumns, kDepth>;
};

struct ScaledWgmmaProduct {
  WgmmaProduct product;
  bool is_a_e5m2, is_b_e5m2;
};

// The scales of a consumer's sums, of one block along K after the other. A thread loads those of
// its two rows. Where each column has its own, it loads some columns' and shares them in the
// consumer's part of shared memory that no store reads.
template <typename Shape>
struct SumScales {
  static constexpr int kSums = Shape::kSums, kColumns = Shape::kColumns;
  static constexpr int kEach = (kColumns + kWarpgroupThreads - 1) / kWarpgroupThreads;

  const float *row[2], *column[kEach];  // in the next block
  int64_t row_depth, column_depth;
  bool is_shared;  // whether all columns share one
  float of_rows[2], of_columns[kEach];

  // Of the sums from a row and a column of C on, which has m x n. Behind its ends, the last ones'
  // scales are loaded.
  DIGLOT_DEVICE SumScales(const Scales& a, const Scales& b, int first_row, int first_column, int m,
                          int n)
      : row_depth(a.depth_stride), column_depth(b.depth_stride) {
    const int thread = warpgroup_thread();
    const auto of = [](const Scales& scales, int at, int size) {
      return scales.data + ((at < size ? at : size - 1) >> scales.shift) * scales.side_stride;
    };
    // Tiles of at most 128 columns are in one block.
    is_shared = b.side_stride == 0 || (b.shift != 0 && kColumns <= kScaledDepth);
    DIGLOT_UNROLL
    for (int i = 0; i < 2; ++i) row[i] = of(a, first_row + accumulator_row(thread, 2 * i), m);
    DIGLOT_UNROLL
    for (int i = 0; i < kEach; ++i) {
      column[i] = of(b, first_column + (is_shared ? 0 : thread + i * kWarpgroupThreads), n);
    }
  }

  // Loads those of the next block.
  DIGLOT_DEVICE void load() {
    DIGLOT_UNROLL
    for (int i = 0; i < 2; ++i) {
      of_rows[i] = __ldg(row[i]);
      row[i] += row_depth;
    }
    DIGLOT_UNROLL
    for (int i = 0; i < kEach; ++i) {
      of_columns[i] = __ldg(column[i]);
      column[i] += column_depth;
    }
  }

  // Makes those of columns known to the warpgroup. All its threads call it.
  DIGLOT_DEVICE void share(float* shared, int barrier) const {
    if (is_shared) return;
    const int thread = warpgroup_thread();
    DIGLOT_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int at = thread + i * kWarpgroupThreads;
      if (at < kColumns) shared[at] = of_columns[i];
    }
    named_barrier_sync(barrier, kWarpgroupThreads);
  }
};

// Calls visit(i, its scale) for each of a thread's sums. `of_column` is that of all columns.
template <int kSums, typename Visit>
DIGLOT_DEVICE void for_each_scale(const float (&of_rows)[2], float of_column, const float* shared,
                                  bool is_shared, Visit visit) {
  if (is_shared) {
    const float factors[] = {of_rows[0] * of_column, of_rows[1] * of_column};
    DIGLOT_UNROLL
    for (int i = 0; i < kSums; ++i) visit(i, factors[i / 2 % 2]);
  } else {
    const float* const first = shared + accumulator_column(warpgroup_thread(), 0);
    DIGLOT_UNROLL
    for (int i = 0; i < kSums; i += 4) {
      const auto pair = *reinterpret_cast<const Vector<float, 2>*>(first + i * 2);
      DIGLOT_UNROLL
      for (int j = 0; j < 4; ++j) visit(i + j, of_rows[j / 2] * pair[j % 2]);
    }
  }
}

// A consumer's view of the ring.
template <typename Shape>
struct Stages {
  typename Shape::Shared& shared;
  Mbarrier *full, *empty;
  Ring<Shape::kStages>& ring;
  int first_row, steps;

  DIGLOT_DEVICE int await() const {
    full[ring.stage].wait(ring.parity);
    return ring.stage;
  }
  DIGLOT_DEVICE void release(int stage) const { release_stage(empty[stage]); }

  // Issues the products of a stage as a group: those of all rows of the consumer, and of the tile's
  // columns from `column` on.
  template <MmaType kTypeA, MmaType kTypeB, int kHalves, int kSums>
  DIGLOT_DEVICE void issue(float (&d)[kHalves][kSums], int stage, int column, bool adds) const {
    using TileA = typename Shape::template TileA<kTypeA>;
    using TileB = typename Shape::template TileB<kTypeB>;
    const uint32_t a = shared_address(shared.a[stage]), b = shared_address(shared.b[stage]);
    wgmma_fence();
    DIGLOT_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      const int row = first_row + half * Shape::kConsumerRows;
      DIGLOT_UNROLL
      for (int k = 0; k < Shape::kDepth; k += depth_of(kTypeA)) {
        wgmma<kTypeA, kTypeB>(d[half], TileA::descriptor(a, row, k),
                              TileB::descriptor(b, column, k), adds || k > 0);
      }
    }
    wgmma_commit();
  }
};

// Adds the products of all stages of a tile by tensor cores alone. A stage is released while the
// next one's products run. on_issued() is called when the products of the last stage are issued.
template <MmaType kTypeA, MmaType kTypeB, typename Shape, typename OnIssued>
DIGLOT_DEVICE void multiply_fast(float (&sums)[Shape::kHalves][Shape::kSums],
                                 const Stages<Shape>& stages, const OnIssued& on_issued) {
  DIGLOT_UNROLL
  for (auto& half : sums) {
    DIGLOT_UNROLL
    for (float& sum : half) sum = 0;
    fence_accumulators(half);
  }
  int previous = 0;
  for (int step = 0; step < stages.steps; ++step) {
    const int stage = stages.await();
    stages.template issue<kTypeA, kTypeB>(sums, stage, 0, true);
    wgmma_wait<1>();
    if (step > 0) stages.release(previous);
    previous = stage;
    stages.ring.advance();
  }
  on_issued();
  wgmma_wait<0>();
  DIGLOT_UNROLL
  for (auto& half : sums) fence_accumulators(half);
  stages.release(previous);
}

// The same, but each stage's sums are added in float32: by promote.add(sums, part), after
// promote.advance(step, has_next).
template <MmaType kTypeA, MmaType kTypeB, typename Shape, typename Promote>
DIGLOT_DEVICE void multiply_promoted(float (&sums)[Shape::kSums], const Stages<Shape>& stages,
                                     Promote& promote) {
  constexpr int kSums = Shape::kSums / (Shape::kHasHalves ? 2 : 1);
  using Part = float[1][kSums];
  DIGLOT_UNROLL
  for (float& sum : sums) sum = 0;
  const auto issue = [&](Part& part, int column) {
    const int stage = stages.await();
    fence_accumulators(part[0]);
    stages.template issue<kTypeA, kTypeB>(part, stage, column, false);
    return stage;
  };
  int step = 0;
  // Adds a part of a thread's sums, when all products but those of `newer` groups are made.
  const auto add = [&](float* to, Part& part, int stage, auto newer, bool is_last) {
    wgmma_wait<decltype(newer)::value>();
    fence_accumulators(part[0]);
    if (is_last) stages.release(stage);
    promote.add(reinterpret_cast<float (&)[kSums]>(*to), part[0]);
  };
  const auto advance = [&] {
    promote.advance(step, step + 1 < stages.steps);
    ++step;
  };
  constexpr std::integral_constant<int, 0> kNone;
  constexpr std::integral_constant<int, 1> kOne;
  Part part = {};
  if constexpr (Shape::kHasHalves) {
    Part other = {};
    while (step < stages.steps) {
      const int stage = issue(part, 0);
      issue(other, Shape::kColumns / 2);
      advance();
      add(sums, part, stage, kOne, false);
      add(sums + kSums, other, stage, kNone, true);
      stages.ring.advance();
    }
  } else {
    if constexpr (Shape::kHasPairs) {
      Part other = {};
      while (step + 1 < stages.steps) {
        const int first = issue(part, 0);
        stages.ring.advance();
        const int second = issue(other, 0);
        stages.ring.advance();
        advance();
        add(sums, part, first, kOne, true);
        advance();
        add(sums, other, second, kNone, true);
      }
    }
    while (step < stages.steps) {
      const int stage = issue(part, 0);
      stages.ring.advance();
      advance();
      add(sums, part, stage, kNone, true);
    }
  }
}

// Sums of stages are added as they are.
struct AddParts {
  DIGLOT_DEVICE void advance(int, bool) const {}
  template <int kSums>
  DIGLOT_DEVICE void add(float (&sums)[kSums], const float (&part)[kSums]) const {
    DIGLOT_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] += part[i];
  }
};

// They are multiplied by the scales of their block. The next block's are on their way meanwhile.
template <typename Shape>
struct AddScaledParts {
  SumScales<Shape> scales;
  float* shared;  // room for columns of two blocks
  int barrier;
  float of_rows[2], of_column;  // in the block

  DIGLOT_DEVICE AddScaledParts(const SumScales<Shape>& given, float* shared, int barrier)
      : scales(given), shared(shared), barrier(barrier) {
    scales.load();
  }
  DIGLOT_DEVICE void advance(int step, bool has_next) {
    shared_now = shared + step % 2 * Shape::kColumns;
    scales.share(shared_now, barrier);
    of_rows[0] = scales.of_rows[0], of_rows[1] = scales.of_rows[1];
    of_column = scales.of_columns[0];
    if (has_next) scales.load();
  }
  DIGLOT_DEVICE void add(float (&sums)[Shape::kSums], const float (&part)[Shape::kSums]) const {
    for_each_scale<Shape::kSums>(
        of_rows, of_column, shared_now, scales.is_shared,
        [&](int i, float factor) { sums[i] = fma(part[i], factor, sums[i]); });
  }

 private:
  float* shared_now;
};

// Calls multiply(type of A, type of B): one main loop for each pair.
template <typename Multiply>
DIGLOT_DEVICE void with_types(const ScaledWgmmaProduct& product, const Multiply& multiply) {
  constexpr std::integral_constant<MmaType, MmaType::kE4m3> kE4m3;
  constexpr std::integral_constant<MmaType, MmaType::kE5m2> kE5m2;
  if (product.is_a_e5m2) {
    multiply(kE5m2, kE4m3);
  } else {
    product.is_b_e5m2 ? multiply(kE4m3, kE5m2) : multiply(kE4m3, kE4m3);
  }
}

// Multiplies, scales and stores all tiles of the block, or those of this consumer's turns.
template <typename T, typename Shape>
DIGLOT_DEVICE void consume_scaled_stages(typename Shape::Shared& shared, Mbarrier* full,
                                         Mbarrier* empty, const TensorMap& map_c,
                                         const Scales& scale_a, const Scales& scale_b,
                                         const Epilogue<T>& epilogue,
                                         const ScaledWgmmaProduct& scaled) {
  constexpr int kSums = Shape::kSums;
  constexpr Accumulation kAccumulation = Shape::kAccumulation;
  constexpr bool kTakesTurns = Shape::kTakesTurns;
  const WgmmaProduct& product = scaled.product;
  const int consumer = consumer_number();
  const int first_row = kTakesTurns ? 0 : consumer * Shape::kConsumerRows;
  const int m = static_cast<int>(epilogue.m), n = static_cast<int>(epilogue.n);
  const int steps = product.schedule.steps;
  Ring<Shape::kStages> ring;
  const Stages<Shape> stages{shared, full, empty, ring, first_row, steps};
  TmaParts<Shape> stored{shared.c[consumer], 1 + consumer};
  const auto count = static_cast<uint32_t>(product.schedule.count());
  const uint32_t turn = kTakesTurns ? static_cast<uint32_t>(consumer) : 0;
  const Turns<Shape> turns{consumer};
  turns.begin();
  if (turn > 0) ring.advance(steps);
  for (uint32_t index = blockIdx.x + turn * gridDim.x; index < count;
       index += gridDim.x * (kTakesTurns ? 2 : 1)) {
    const Tile tile = product.schedule.tiles.tile(index);
    const int row = tile.row * Shape::kRows + first_row, column = tile.column * Shape::kColumns;
    // Of 64 rows of sums.
    const auto scales_of = [&](int row) {
      return SumScales<Shape>(scale_a, scale_b, row, column, m, n);
    };
    // Where scales of columns may lie: no store reads it.
    const auto room = [&] { return reinterpret_cast<float*>(stored.panels[stored.next]); };
    const auto end_room = [&](bool is_shared) {
      if (!is_shared) named_barrier_sync(stored.barrier, kWarpgroupThreads);
    };
    const auto scale = [&](float (&half)[kSums], const SumScales<Shape>& scales) {
      float* const of_columns = room();
      scales.share(of_columns, stored.barrier);
      for_each_scale<kSums>(scales.of_rows, scales.of_columns[0], of_columns, scales.is_shared,
                            [&](int i, float factor) { half[i] *= factor; });
      end_room(scales.is_shared);
    };
    const auto finish = [&](float (&half)[kSums], int row) {
      for_each_part<Shape>(half, [&](auto& part, auto first) {
        constexpr int kFirst = decltype(first)::value, kPart = sizeof(part) / sizeof(float);
        TileBias<T, Shape, 2 * kPart> bias;
        bias.load(epilogue, row, column + kFirst);
        bias.add(part, epilogue);
        if constexpr (sizeof(T) == 2) {
          if (product.is_stored_by_tma) {
            write_part<T, Shape>(part, stored);
            return store_part<T, Shape, kPart>(stored, map_c, row, column + kFirst, BatchPlace{});
          }
        }
        epilogue.store(false, [&](auto visit) {
          for_each_sum<false>(part, row, column + kFirst, m, n, visit);
        });
      });
    };
    float sums[Shape::kHalves][kSums];
    if constexpr (kAccumulation == Accumulation::kBlocks) {
      AddScaledParts<Shape> promote(scales_of(row), room(), stored.barrier);
      with_types(scaled, [&](auto type_a, auto type_b) {
        multiply_promoted<decltype(type_a)::value, decltype(type_b)::value>(sums[0], stages,
                                                                            promote);
      });
      end_room(promote.scales.is_shared);
      finish(sums[0], row);
    } else if constexpr (kTakesTurns) {
      turns.await();
      with_types(scaled, [&](auto type_a, auto type_b) {
        multiply_fast<decltype(type_a)::value, decltype(type_b)::value>(sums, stages, [&] {
          if (index + gridDim.x < count) turns.pass();
        });
      });
      DIGLOT_NO_UNROLL
      for (int half = 0; half < Shape::kHalves; ++half) {
        SumScales<Shape> scales = scales_of(row + half * Shape::kConsumerRows);
        scales.load();
        scale(sums[0], scales);
        finish(sums[0], row + half * Shape::kConsumerRows);
        DIGLOT_UNROLL
        for (int i = 0; i < kSums; ++i) sums[0][i] = sums[1][i];
      }
      ring.advance(steps);  // the other consumer's
    } else {
      SumScales<Shape> scales = scales_of(row);
      scales.load();  // while the tile is multiplied
      with_types(scaled, [&](auto type_a, auto type_b) {
        if constexpr (kAccumulation == Accumulation::kFast) {
          multiply_fast<decltype(type_a)::value, decltype(type_b)::value>(sums, stages, [] {});
        } else {
          AddParts promote;
          multiply_promoted<decltype(type_a)::value, decltype(type_b)::value>(sums[0], stages,
                                                                              promote);
        }
      });
      scale(sums[0], scales);
      finish(sums[0], row);
    }
  }
  // A block's shared memory ends with the block.
  if (threadIdx.x % kWarpgroupThreads == 0) wait_bulk_groups_read<0>();
}

template <typename T, typename Shape>
DIGLOT_DEVICE void multiply_scaled_by_wgmma(const TensorMap& a, const TensorMap& b,
                                            const TensorMap& map_c, const Scales& scale_a,
                                            const Scales& scale_b, const Epilogue<T>& epilogue,
                                            const ScaledWgmmaProduct& scaled) {
  if (threadIdx.x == Shape::kThreads - 1) {  // a thread with nothing else to do
    tma_prefetch_map(a);
    tma_prefetch_map(b);
    if (scaled.product.is_stored_by_tma) tma_prefetch_map(map_c);
  }
  share_out<Shape>([&](auto&, const auto& at) { produce_stages<Shape>(at, a, b, scaled.product); },
                   [&](auto& shared, const auto&) {
                     consume_scaled_stages<T, Shape>(shared, shared.barriers.full,
                                                     shared.barriers.empty, map_c, scale_a, scale_b,
                                                     epilogue, scaled);
                   });
}

}  // namespace diglot
