// The compiled shapes of row kernels (rows/place.cuh), as lists by operation and element type. A
// planner goes through such a list (rows.h).
#pragma once

#include "diglot/launch/plan.h"
#include "diglot/rows/rows.cuh"

namespace diglot {

// Small blocks share the SMs out evenly.
template <int kAccesses, Width kWidth = Width::kWide, int kBlocks = 1>
using LaneRows = RowShape<Team::kLanes, kWidth, 64, kAccesses, Walk::kResident, kBlocks>;
template <int kThreads, int kAccesses, int kBlocks = 1>
using BlockRows =
    RowShape<Team::kBlock, Width::kWide, kThreads, kAccesses, Walk::kResident, kBlocks>;
template <int kThreads, int kAccesses, int kBlocks, Width kWidth>
using ClusterRows = RowShape<Team::kCluster, kWidth, kThreads, kAccesses, Walk::kResident, kBlocks>;
template <int kAccesses, Width kWidth = Width::kWide>
using TiledRows = RowShape<Team::kBlock, kWidth, 256, kAccesses, Walk::kTiled, 2>;
template <int kAccesses, Width kWidth = Width::kWide>
using TiledColumns = RowShape<Team::kColumns, kWidth, 256, kAccesses, Walk::kTiled, 2>;
// Rows accessed element by element.
using NarrowLaneRows = LaneRows<1, Width::kNarrow>;
using NarrowTiledRows = TiledRows<2, Width::kNarrow>;

// Columns that are taller than the tunable kTallest_ take two launches. Each has its own accesses
// per thread.
template <typename I, Tunable kTallest_, int kReduced, int kMapped, Width kWidth = Width::kWide>
struct ChunkedColumns {
  static constexpr Tunable kTallest = kTallest_;
  static constexpr int kBlocks = sizeof(I) == 8 ? 2 : 3;
  using Reduce = RowShape<Team::kColumns, kWidth, 256, kReduced, Walk::kReduceChunks, kBlocks>;
  using Map = RowShape<Team::kColumns, kWidth, 256, kMapped, Walk::kMapChunks, kBlocks>;
};
template <typename Shape, typename = void>
constexpr bool kIsChunked = false;
template <typename Shape>
constexpr bool kIsChunked<Shape, std::void_t<typename Shape::Reduce>> = true;

// Variants in order of preference. The first that can hold the row in registers runs. If none can,
// the last runs, in tiles.
template <typename... Shapes>
struct ShapeList {};

// Short rows of 16-bit elements that begin between multiples of 16 bytes, if a warp has one anyway:
// edges would take longer than accesses element by element.
using DenseLaneRows = LaneRows<4, Width::kDense>;
constexpr int64_t kLongestOfHalfWarps = 512;
template <typename T, typename List>
struct PeeledList {
  using type = List;
};
template <typename... Shapes>
struct PeeledList<uint16_t, ShapeList<Shapes...>> {
  using type = ShapeList<DenseLaneRows, Shapes...>;
};
// The variants of peeled rows: `List`, after DenseLaneRows if these serve the type.
template <typename T, typename List>
using WithDense =
    typename PeeledList<std::conditional_t<sizeof(T) == 2, uint16_t, void>, List>::type;

// Rows, about one for each SM, that take as long as one row, and the accesses of a thread then.
constexpr int64_t kFewRows = 132, kFewAccesses = 2;
// No limit to the accesses of a thread but its shape's.
constexpr int64_t kAllAccesses = 64;

// A cluster's blocks each hold at most 16384 elements of the row. With 16-bit elements it is 24576,
// or 12288 of two arrays. These thread counts leave registers for enough resident blocks to hide
// latency; measured on an H200 (bench/softmax.py, bench/rms_norm.py).
template <typename I, int kInputs>
struct SharedRows {
  static constexpr int kBytes = sizeof(I) * kInputs;  // held bytes of an element
  static constexpr int kAccesses = sizeof(I) == 2 && kInputs == 2 ? 4 : 8;
  static constexpr int kThreads = sizeof(I) == 2 ? 384 : 512;
  static constexpr int kBlocks = kBytes <= 4 ? 2 : 1;
  // The edges of peeled rows take registers, too.
  template <Width kWidth>
  using Shape = ClusterRows<kThreads, kWidth == Width::kPeeled && kAccesses == 8 ? 6 : kAccesses,
                            kBlocks, kWidth>;
};

// Element types where speed matters most have more variants. A thread's accesses to all kInputs
// arrays fit in 32 registers; double's arithmetic takes more. The fastest variant for each row
// length was measured on an H200 (bench/softmax.py). kReduced is the number of reduced inputs.
template <typename I, typename O, int kInputs, int kReduced_ = kInputs>
struct RowShapes {
  static constexpr int kReduced = kReduced_;
  static constexpr int kMost = sizeof(I) == 8 ? 2 : 8 / kInputs;
  static constexpr int kMostReduced = sizeof(I) == 8 ? 2 : 8 / kReduced;
  // Taller columns take two launches. The limit is lower if the first launch reads fewer inputs.
  static constexpr Tunable kTallest =
      kReduced < kInputs ? Tunable::kRowsTallestOfFirst : Tunable::kRowsTallest;
  static constexpr Tunable kSkipped = Tunable::kRowsSkippedShapes;
  static constexpr int kOfLanes = sizeof(I) == 4 && kInputs == 1 ? 8 : 4;
  // float16 takes more registers on its way to float32. So more threads hold the same row, or fewer
  // hold a shorter one.
  static constexpr bool kIsHalf = std::is_same_v<I, float16>;
  template <Width kWidth>
  using Shared = std::conditional_t<
      kIsHalf && kInputs == 1, ClusterRows<512, 4, 2, kWidth>,
      std::conditional_t<kIsHalf && kWidth == Width::kPeeled, ClusterRows<320, 4, 2, kWidth>,
                         typename SharedRows<I, kInputs>::template Shape<kWidth>>>;
  using Many = ShapeList<LaneRows<kOfLanes>, LaneRows<kMost, Width::kWide, kMost == 8 ? 12 : 1>,
                         BlockRows<256, 4>, Shared<Width::kWide>, TiledRows<kMost>>;
  using Few = ShapeList<LaneRows<2>, TiledRows<kMost>>;
  static constexpr bool kIsMany = std::is_same_v<I, O> && sizeof(I) <= 4;
  using Wide = std::conditional_t<kIsMany, Many, Few>;
  using Narrow = ShapeList<NarrowLaneRows, NarrowTiledRows>;
  using PeeledRows = ShapeList<LaneRows<kOfLanes, Width::kPeeled>, Shared<Width::kPeeled>,
                               TiledRows<kMost, Width::kPeeled>>;
  using Peeled =
      std::conditional_t<!kIsMany, Narrow,
                         std::conditional_t<kInputs == 1, WithDense<I, PeeledRows>, PeeledRows>>;
  // Lanes hold short rows, and longer ones if there are many. Of one array of 16-bit elements, a
  // block is faster for most of the latter, but leaves a third of its threads idle at 1280.
  static constexpr int64_t kShort = 512, kIdleFrom = 1024, kIdleTo = 1280;
  template <typename Shape>
  static bool takes(Planner&, int64_t n, int64_t count) {
    if (Shape::kWidth == Width::kDense) return n > kLongestOfHalfWarps;
    const bool are_lanes = Shape::kTeam == Team::kLanes && Shape::kWidth == Width::kWide;
    if (!are_lanes || !kIsMany || n <= kShort) return true;
    if (count <= kFewRows) return false;
    return sizeof(I) > 2 || kInputs > 1 || (n > kIdleFrom && n <= kIdleTo);
  }
  static int64_t most_accesses(int64_t count) {
    return count <= kFewRows ? kFewAccesses : kAllAccesses;
  }
  static int64_t most_threads(Planner& planner, int64_t) {
    return planner.tuned(Tunable::kRowsBlockThreads);
  }
  static constexpr bool kHasColumns = true;
  using WideColumns =
      ShapeList<ChunkedColumns<I, kTallest, kMostReduced, kMost>, TiledColumns<kMost>>;
  using NarrowColumns =
      ShapeList<ChunkedColumns<I, kTallest, 8, 8, Width::kNarrow>, TiledColumns<8, Width::kNarrow>>;
};

}  // namespace diglot
