// Host side of the norms of rows. The Triton side is in triton_ops/launch/rows.py.
#pragma once

#include "diglot/launch/dispatch.h"
#include "diglot/launch/rows.h"
#include "diglot/norm/forward.cuh"

namespace diglot {

// Shapes for norms. Rows are the last dimension and contiguous, so there are no columns. Lanes hold
// short rows, in the shape that leaves the fewest accesses idle. Few rows take as long as one row:
// many threads share it, with little code. The shapes were measured on an H200, at rows of
// published models (bench/models.py).
template <typename T, int kInputs, bool kIsCentered>
struct NormShapes {
  static constexpr bool kIsOneCentered = kIsCentered && kInputs == 1;
  static constexpr int kMost = sizeof(T) == 8 ? 2 : 8 / kInputs;
  // Blocks of lanes on an SM leave registers for weight and bias, where these are loaded early.
  template <int kAccesses>
  using Lanes = LaneRows<kAccesses, Width::kWide,
                         kInputs == 2                       ? (kAccesses == 4 ? 8 : 6)
                         : kAccesses == 4 || kAccesses == 5 ? 10
                         : kIsOneCentered && kAccesses == 6 ? 9
                                                            : 12>;
  using FewShort = BlockRows<512, 1, 2>;
  using FewRows = BlockRows<1024, 2>;
  // Each serves a number of rows that the others would take two waves for.
  using InHeld = BlockRows<256, 4, 3>;  // it holds weight and bias as well
  using InThreads = BlockRows<384, 4, 3>;
  using InFewThreads = BlockRows<224, 8, 4>;
  using InManyThreads = BlockRows<512, 4, 2>;
  template <Width kWidth>
  using Shared = typename SharedRows<T, kInputs>::template Shape<kWidth>;
  using Cluster = ClusterRows<384, 6, 2, Width::kWide>;
  // For rows of two arrays that are longer than those of Shared.
  using LongCluster =
      std::conditional_t<std::is_same_v<T, bfloat16>, ClusterRows<320, 8, 2, Width::kWide>,
                         ClusterRows<384, 11, 1, Width::kWide>>;
  using One = std::conditional_t<
      kIsCentered,
      ShapeList<Lanes<3>, Lanes<4>, Lanes<5>, Lanes<6>, FewShort, FewRows, InHeld, InThreads,
                InFewThreads, InManyThreads, Cluster, TiledRows<kMost>>,
      ShapeList<Lanes<4>, Lanes<5>, Lanes<6>, FewShort, InManyThreads, Cluster, TiledRows<kMost>>>;
  using Two =
      std::conditional_t<kIsCentered,
                         ShapeList<Lanes<4>, Lanes<6>, FewShort, FewRows, BlockRows<256, 4, 2>,
                                   Shared<Width::kWide>, LongCluster, TiledRows<kMost>>,
                         ShapeList<Lanes<4>, FewShort, BlockRows<256, 4, 3>, Shared<Width::kWide>,
                                   LongCluster, TiledRows<kMost>>>;
  using Few = ShapeList<LaneRows<2>, TiledRows<kMost>>;
  using Wide = std::conditional_t<sizeof(T) == 8, Few, std::conditional_t<kInputs == 1, One, Two>>;
  using Narrow = ShapeList<NarrowLaneRows, NarrowTiledRows>;
  // A warp reads a row of at most 1024 elements one by one, which takes less than edges apart.
  // Several of the shortest rows share a warp.
  static constexpr int kDenseAccesses = 2 * static_cast<int>(sizeof(T));
  using Dense = LaneRows<kDenseAccesses, Width::kDense>;
  using ShortDense = LaneRows<kDenseAccesses / 2, Width::kDense>;
  static constexpr int64_t kLongestOfSeveral = 120;
  using PeeledLanes = LaneRows<4, Width::kPeeled, sizeof(T) == 2 && kInputs == 1 ? 12 : 1>;
  // A block of more threads suits peeled rows of 16 bits that all run at once. float16 takes more
  // registers on its way to float32.
  using PeeledAtOnce = ClusterRows<(std::is_same_v<T, float16> ? 320 : 384), 4, 2, Width::kPeeled>;
  // Registers for weight and bias of peeled rows, or for more blocks.
  using PeeledShared = std::conditional_t<
      kIsOneCentered, ClusterRows<320, 6, 2, Width::kPeeled>,
      std::conditional_t<
          kInputs == 1 && std::is_same_v<T, bfloat16>, ClusterRows<448, 6, 2, Width::kPeeled>,
          std::conditional_t<kIsCentered && sizeof(T) == 2, PeeledAtOnce, Shared<Width::kPeeled>>>>;
  using PeeledRows = std::conditional_t<
      sizeof(T) == 2 && kInputs == 1,
      ShapeList<ShortDense, Dense, PeeledLanes, PeeledAtOnce, PeeledShared,
                TiledRows<kMost, Width::kPeeled>>,
      ShapeList<ShortDense, Dense, PeeledLanes, PeeledShared, TiledRows<kMost, Width::kPeeled>>>;
  using Peeled = std::conditional_t<sizeof(T) <= 4, PeeledRows, Narrow>;
  static constexpr bool kHasColumns = false;
  // Whether all blocks run at once, if each holds one of `count` rows.
  template <typename Shape>
  static bool is_one_wave(Planner& planner, int64_t accesses, int64_t count) {
    constexpr int kOfWarp = Shape::kAccesses * kWarpLanes;
    const int64_t warps = (accesses + kOfWarp - 1) / kOfWarp;
    return count <= Shape::kThreads * Shape::kBlocks / (warps * kWarpLanes) *
                        planner.device.multiprocessors();
  }
  // The accesses that lanes of a power of two have for a row, with kEach of each.
  template <int kEach>
  static int64_t of_lanes(int64_t accesses) {
    return int64_t{kEach} << log2_ceiling((accesses + kEach - 1) / kEach);
  }
  // Whether no other shape of lanes in the list leaves fewer accesses idle, or as many and is
  // first.
  template <int kEach, typename... Shapes>
  static bool fits_best(int64_t accesses, ShapeList<Shapes...>) {
    const int64_t own = of_lanes<kEach>(accesses);
    const auto is_better = [&](auto shape) {
      using Other = decltype(shape);
      if (Other::kTeam != Team::kLanes || accesses > kWarpLanes * Other::kAccesses) return false;
      const int64_t others = of_lanes<Other::kAccesses>(accesses);
      return others < own || (others == own && Other::kAccesses < kEach);
    };
    return !(is_better(Shapes{}) || ...);
  }
  // Whether to use a shape for `count` rows of n elements, if it holds one. With many rows, few
  // blocks should read weight and bias, in tiles of shared memory.
  template <typename Shape>
  static bool takes(Planner& planner, int64_t n, int64_t count) {
    const int64_t few = planner.tuned(Tunable::kNormForwardFewRows);
    if (Shape::kWidth == Width::kDense) {
      // A warp takes long for a row of float32, and a block less if there are few.
      return n > kLongestOfSeveral &&
             (sizeof(T) == 2 || std::is_same_v<Shape, ShortDense> || count / 4 > few);
    }
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    constexpr int kAlong = Shape::template kAlong<T>;
    const int64_t accesses = (n + Shape::template kMostSkipped<T> + kAlong - 1) / kAlong;
    if (Shape::kIsPeeled) {
      if (kInputs == 1 && std::is_same_v<Shape, PeeledAtOnce>) {
        return is_one_wave<Shape>(planner, accesses, count);
      }
      // Many rows of float32 that take a cluster many registers are in tiles.
      constexpr int kLong = 8192;
      const bool is_long =
          kIsCentered && sizeof(T) == 4 && Shape::kTeam == Team::kCluster && n > kLong;
      return !is_long || count <= few;
    }
    if (Shape::kTeam == Team::kLanes) {
      constexpr int64_t kShort = 64;
      const int64_t longest =
          count > few && (kInputs == 1 || kIsCentered)
              ? std::max(kShort, planner.tuned(Tunable::kNormForwardLongestInLanes, kInputs))
              : kShort;
      return accesses <= longest && fits_best<Shape::kAccesses>(accesses, Wide{});
    }
    if (std::is_same_v<Shape, FewShort> || std::is_same_v<Shape, FewRows>) {
      if (count <= few || kInputs == 1 || kIsCentered) return count <= few;
      // Of many rows, add_rms_norm has many threads as well, unless fewer can hold them all at
      // once.
      return is_one_wave<FewShort>(planner, accesses, count) ||
             !is_one_wave<BlockRows<256, 4, 3>>(planner, accesses, count);
    }
    // Of very many long rows, fewer blocks should read weight and bias.
    constexpr int kMany = 2;
    if (kIsCentered && std::is_same_v<Shape, LongCluster>) return count / kMany <= few;
    if (!kIsOneCentered) return true;
    if (std::is_same_v<Shape, InHeld>) return is_one_wave<Shape>(planner, accesses, count);
    if (std::is_same_v<Shape, InThreads> || std::is_same_v<Shape, InFewThreads>) {
      const bool is_better = accesses <= InThreads::kThreads * InThreads::kAccesses &&
                             !is_one_wave<InThreads>(planner, accesses, count) &&
                             is_one_wave<InFewThreads>(planner, accesses, count);
      return is_better == std::is_same_v<Shape, InFewThreads>;
    }
    if (Shape::kTeam != Team::kCluster || accesses <= Shape::kThreads * Shape::kAccesses)
      return true;
    // Clusters are for rows that no block's registers hold. If there are enough rows for all SMs,
    // and half an SM's shared memory holds one, each block holds one there.
    const int64_t held = planner.device.shared_bytes();
    return bytes > held ? count / kMany <= few : count <= (bytes > held / 2 ? few : few / 2);
  }
  static int64_t most_accesses(int64_t) { return kAllAccesses; }
  static int64_t most_threads(Planner& planner, int64_t n) {
    return planner.tuned(Tunable::kNormForwardBlockThreads, n);
  }
  static constexpr Tunable kSkipped = Tunable::kNormForwardSkippedShapes;
};

struct NormForwardOperands {
  const Operand& input;
  const Operand* residual;
  const Operand* weight;
  const Operand* bias;
  const Operand* statistics;
  const Operand* sum;
  const Operand& out;
};

// Where the statistics of rows lie: rstd, and the mean if rows are centred, one number for each
// row.
template <typename Compute>
struct RowStatistics {
  Operand shape;  // one element per row, with the dimensions of rows; mean and rstd lie alike
  Address<Compute> mean, rstd;
};

// `statistics`: (fields, *outer) for rows (*outer, n), or null.
template <typename Compute, bool kIsCentered>
RowStatistics<Compute> statistics_of(const Operand& rows, const Operand* statistics) {
  constexpr int kFields = kIsCentered ? 2 : 1;
  if (rows.rank == 0) throw std::invalid_argument("a norm takes rows");
  const int outer = rows.rank - 1;
  RowStatistics<Compute> result{rows, {}, {}};
  result.shape.sizes[outer] = 1;
  result.shape.set_contiguous_strides();
  if (statistics != nullptr) {
    if (statistics->dtype != kDType<Compute> || statistics->rank != rows.rank ||
        statistics->sizes[0] != kFields ||
        !std::equal(rows.sizes, rows.sizes + outer, statistics->sizes + 1)) {
      throw std::invalid_argument("statistics must have " + std::to_string(kFields) +
                                  " numbers for each row, of the type that is computed in");
    }
    std::copy_n(statistics->strides + 1, outer, result.shape.strides);
    result.mean = statistics->as<Compute>();
    result.rstd = result.mean + (kFields - 1) * statistics->strides[0];
  }
  result.shape.numel = 1;
  for (int d = 0; d < outer; ++d) result.shape.numel *= rows.sizes[d];
  return result;
}

// Calls function(Type<W>{}), where W is the type of weight and bias of a norm over elements of type
// T.
template <typename T, typename Function>
void dispatch_parameters(const Operand* weight, const Operand* bias, Function function) {
  const Operand* const parameters = weight != nullptr ? weight : bias;
  if constexpr (sizeof(T) == 2) {
    if (parameters != nullptr && parameters->dtype == DType::kFloat32)
      return function(Type<float>{});
  }
  function(Type<T>{});
}

// Plans function(type, shape, rows, how, inputs, operation) for a norm of rows, as launch_rows
// does. `type` is that of weight and bias.
template <bool kIsCentered, bool kAdds, typename T, typename Function>
void launch_norm_forward(Planner& planner, const NormForwardOperands& operands, Real eps,
                         Function function) {
  using Compute = compute_t<T>;
  constexpr int kInputs = kAdds ? 2 : 1;
  const Operand& out = operands.out;
  const auto statistics = statistics_of<Compute, kIsCentered>(out, operands.statistics);
  bool is_aligned = true;
  for (const Operand* operand : {operands.weight, operands.bias, operands.sum}) {
    is_aligned &= operand == nullptr || operand->is_aligned();
  }
  const int64_t n = out.sizes[out.rank - 1];
  dispatch_parameters<T>(operands.weight, operands.bias, [&](auto type) {
    using W = typename decltype(type)::type;
    using Operation = std::conditional_t<kAdds, AddNormForward<T, W, kIsCentered>,
                                         NormForward<T, W, kIsCentered>>;
    const auto operation = [n, eps, mean = statistics.mean, rstd = statistics.rstd,
                            weight = address_of<const W>(operands.weight),
                            bias = address_of<const W>(operands.bias),
                            sum = address_of<T>(operands.sum)](const Arguments& now) {
      Operation result{};
      result.params.arrays[0] = weight(now);
      if constexpr (kIsCentered) result.params.arrays[1] = bias(now);
      result.eps = static_cast<Compute>(eps(now));
      result.inverse_n = 1 / static_cast<Compute>(n);
      result.mean = mean(now), result.rstd = rstd(now);
      if constexpr (kAdds) result.joined = sum(now);
      return result;
    };
    const bool is_like_output = operands.sum == nullptr || operands.sum->remainder == out.remainder;
    const auto add = [&](const auto& inputs) {
      return [&](auto shape, const auto& rows, const Launch& how, const Address<char>&) {
        return function(type, shape, rows, how, inputs, operation);
      };
    };
    using Shapes = NormShapes<T, kInputs, kIsCentered>;
    if constexpr (kAdds) {
      launch_rows<T, T, kInputs, Shapes>(
          planner, {&out, &operands.input, operands.residual, &statistics.shape}, out.rank - 1,
          add(inputs_of<T>(operands.input, *operands.residual)), is_aligned, 0, is_like_output);
    } else {
      launch_rows<T, T, kInputs, Shapes>(planner, {&out, &operands.input, &statistics.shape},
                                         out.rank - 1, add(inputs_of<T>(operands.input)),
                                         is_aligned);
    }
  });
}

}  // namespace diglot
