// Host side of the norms of rows. The Triton side is in triton_ops/launch/rows.py.
#pragma once

#include "diglot/launch/dispatch.h"
#include "diglot/launch/rows.h"
#include "diglot/norm/forward.cuh"

namespace diglot {

// Shapes for norms. Rows are the last dimension and contiguous, so there are no columns. Few rows
// take as long as one row: many threads share it, with little code. Otherwise more accesses per
// thread spread a warp's fixed costs, and fewer leave room for more warps. The shapes were measured
// on an H200 (bench/layer_norm.py).
template <typename T, int kInputs, bool kIsCentered>
struct NormShapes {
  static constexpr int kMost = sizeof(T) == 8 ? 2 : 8 / kInputs;
  using FewRows = std::conditional_t<kIsCentered, BlockRows<1024, 2>, BlockRows<384, 1>>;
  static constexpr int64_t kOneWave = 320 * 1024;  // accesses that all SMs hold in this shape
  template <Width kWidth>
  using InLanes = LaneRows<4, kWidth,
                           (kInputs > 1 || (sizeof(T) > 2 && kWidth != Width::kWide)) ? 1
                           : (kWidth == Width::kWide)                                 ? 10
                                                                                      : 12>;
  using InManyLanes = LaneRows<8, Width::kWide, 8>;
  // Each serves a number of rows that the other would take two waves for.
  using InThreads = BlockRows<384, 4, 3>;
  using InFewThreads = std::conditional_t<kIsCentered, BlockRows<224, 8, 4>, BlockRows<256, 8, 3>>;
  using InManyThreads = BlockRows<512, 4, 2>;
  template <Width kWidth>
  using Shared = typename SharedRows<T, kInputs>::template Shape<kWidth>;
  using One = ShapeList<InLanes<Width::kWide>, FewRows, LaneRows<6, Width::kWide, 12>, InManyLanes,
                        InThreads, InFewThreads, InManyThreads,
                        ClusterRows<384, 6, 2, Width::kWide>, TiledRows<kMost>>;
  using Two = std::conditional_t<kIsCentered,
                                 ShapeList<InLanes<Width::kWide>, FewRows, BlockRows<256, 4, 3>,
                                           Shared<Width::kWide>, TiledRows<kMost>>,
                                 ShapeList<InLanes<Width::kWide>, BlockRows<256, 4, 3>,
                                           Shared<Width::kWide>, TiledRows<kMost>>>;
  using Few = ShapeList<LaneRows<2>, TiledRows<kMost>>;
  using Wide = std::conditional_t<sizeof(T) == 8, Few, std::conditional_t<kInputs == 1, One, Two>>;
  using Narrow = ShapeList<NarrowLaneRows, NarrowTiledRows>;
  static constexpr bool kIsOneCentered = kIsCentered && kInputs == 1;
  // A block of more threads suits a peeled row of 16 bits, if it holds the row alone. float16 takes
  // more registers on its way to float32.
  using PeeledInBlock = ClusterRows<(std::is_same_v<T, float16> ? 320 : 384), 4, 2, Width::kPeeled>;
  // Registers for weight and bias of peeled rows, or for more blocks.
  using PeeledShared = std::conditional_t<
      kIsOneCentered, ClusterRows<320, 6, 2, Width::kPeeled>,
      std::conditional_t<kInputs == 1 && std::is_same_v<T, bfloat16>,
                         ClusterRows<448, 6, 2, Width::kPeeled>,
                         std::conditional_t<kIsCentered && sizeof(T) == 2, PeeledInBlock,
                                            Shared<Width::kPeeled>>>>;
  // A row of float32 takes twice the accesses of one of 16 bits, and is in lanes as well.
  using PeeledRows = std::conditional_t<
      sizeof(T) == 4 && kInputs == 1,
      ShapeList<InLanes<Width::kPeeled>, LaneRows<8, Width::kPeeled>, PeeledShared,
                TiledRows<kMost, Width::kPeeled>>,
      std::conditional_t<
          kIsOneCentered,
          ShapeList<InLanes<Width::kPeeled>, PeeledInBlock, PeeledShared,
                    TiledRows<kMost, Width::kPeeled>>,
          ShapeList<InLanes<Width::kPeeled>, PeeledShared, TiledRows<kMost, Width::kPeeled>>>>;
  using Peeled = std::conditional_t<sizeof(T) <= 4, WithDense<T, PeeledRows>, Narrow>;
  static constexpr bool kHasColumns = false;
  // Whether all blocks run at once, if each holds one of `count` rows.
  template <typename Shape>
  static bool is_one_wave(Planner& planner, int64_t accesses, int64_t count) {
    constexpr int kOfWarp = Shape::kAccesses * kWarpLanes;
    const int64_t warps = (accesses + kOfWarp - 1) / kOfWarp;
    return count <= Shape::kThreads * Shape::kBlocks / (warps * kWarpLanes) *
                        planner.device.multiprocessors();
  }
  // Whether lanes with eight accesses suit a layer norm. They suit rows that all run at once, if
  // four cannot hold one. They also suit very many rows that six cannot hold, if such a row leaves
  // threads of a block idle.
  static bool suits_eight(int64_t accesses, int64_t count, int64_t few) {
    if (!kIsOneCentered) return false;
    const int64_t all = accesses * count;
    return accesses > 6 * kWarpLanes ? accesses <= 7 * kWarpLanes && all > 4 * kOneWave
                                     : accesses > 4 * kWarpLanes && count > few && all <= kOneWave;
  }
  // Whether to use a shape for `count` rows of n elements, if it holds one. With many rows, few
  // blocks should read weight and bias, in tiles of shared memory.
  template <typename Shape>
  static bool takes(Planner& planner, int64_t n, int64_t count) {
    const int64_t few = planner.tuned(Tunable::kNormForwardFewRows);
    if (Shape::kWidth == Width::kDense) return n > kLongestOfHalfWarps;
    if (Shape::kIsPeeled) {
      const int64_t alone = Shape::kThreads * Shape::kAccesses * Shape::template kAlong<T> -
                            Shape::template kMostSkipped<T>;
      if (kIsOneCentered && std::is_same_v<Shape, PeeledInBlock>) return n <= alone;
      const bool is_long = kIsOneCentered && sizeof(T) == 4 && Shape::kTeam == Team::kCluster &&
                           n > TiledRows<kMost>::kThreads * kMost * Shape::template kAlong<T>;
      return !is_long || count <= few;
    }
    const int64_t accesses = n / Shape::template kAlong<T>;
    const bool is_for_eight = suits_eight(accesses, count, few);
    if (Shape::kTeam == Team::kLanes) {
      if (Shape::kAccesses == 8 && is_for_eight) return true;
      if (Shape::kAccesses == 6 && is_for_eight) return false;
      // Four accesses of a whole warp suit many rows that six of half a warp cannot hold, and rows
      // of a layer norm that all run at once.
      const bool are_many = accesses * count > kOneWave;
      const bool suits =
          kInputs == 1 && Shape::kAccesses == 4 &&
          (are_many ? accesses > 6 * kWarpLanes / 2 : kIsCentered && accesses > 64 && count > few);
      return suits || n <= planner.tuned(Tunable::kNormForwardLongestInLanes, Shape::kAccesses);
    }
    if (std::is_same_v<Shape, InThreads> || std::is_same_v<Shape, InFewThreads>) {
      const bool is_better = accesses <= InThreads::kThreads * InThreads::kAccesses &&
                             !is_one_wave<InThreads>(planner, accesses, count) &&
                             is_one_wave<InFewThreads>(planner, accesses, count);
      return is_better == std::is_same_v<Shape, InFewThreads>;
    }
    const bool is_split = n > Shape::kThreads * Shape::kAccesses * Shape::template kAlong<T>;
    const bool is_for_few = std::is_same_v<Shape, FewRows> || (kIsOneCentered && is_split);
    if (!is_for_few) return true;
    if (is_for_eight) return false;
    // Clusters are for rows that no block's registers hold. If there are enough rows for all SMs,
    // and half an SM's shared memory holds one, each block holds one there.
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    if (is_split) return count <= (bytes <= planner.device.shared_bytes() / 2 ? few / 2 : few);
    return count <= few || (kIsCentered && few > 0 && accesses * count <= kOneWave);
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
