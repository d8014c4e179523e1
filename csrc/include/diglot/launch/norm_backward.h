// Host side of the norms' derivatives: who has a row, and the two launches. Twin of
// triton_ops/launch/norm_backward.py.
#pragma once

#include <optional>

#include "diglot/launch/norm_forward.h"
#include "diglot/launch/plan.h"
#include "diglot/norm/backward_resident.cuh"
#include "diglot/norm/backward_streaming.cuh"
#include "diglot/norm/group_sums.cuh"

namespace diglot {

// Variants, by the type: one that holds a row, for rows of so many blocks, one for longer rows, one
// for elements one by one, and one for rows that are read twice. What is faster was measured on an
// H200 (bench/layer_norm.py).
template <typename T>
struct NormBackwardShapes {
  static constexpr bool kIsNarrowType = sizeof(T) == 2;
  using Wide = NormShape<kIsNarrowType ? 2 : 4, true, true>;
  using Long = NormShape<sizeof(T) == 4 ? 8 : 4, true, false>;
  using Narrow = NormShape<2, false, false>;
  template <bool kIsWide>
  using Streaming = NormShape<(kIsNarrowType ? 1 : 2) * (kIsWide ? 2 : 1), kIsWide, false>;
};

// Upper bound of the shared memory that a block uses for other purposes and that the driver
// reserves.
constexpr int kNormOtherBytes = 2 * 1024 + 64;

// Groups of rows whose sums are added up.
inline int groups_of_rows(Planner& planner, int64_t count, int64_t row_bytes) {
  const int64_t kibibytes = (row_bytes + 1023) / 1024;
  const int64_t groups = planner.tuned(Tunable::kNormBackwardGroups, kibibytes);
  return static_cast<int>(std::clamp<int64_t>(count, 1, groups));
}

struct NormOperands {
  const Operand& grad_output;
  const Operand* grad_sum;
  const Operand& input;
  const Operand& statistics;
  const Operand* weight;
  const Operand* grad_weight;
  const Operand* grad_bias;
  const Operand& grad_input;
};

// An array of rows without the dimension that is normalized, the last.
inline Operand outer_dimensions(Operand operand) {
  --operand.rank;
  return operand;
}

struct NormVariantNames {
  const char* in_lanes;
  const char* in_block;
  const char* in_cluster;
  const char* two_pass;
};
template <bool kIsWide>
constexpr NormVariantNames kNormVariantNames =
    kIsWide ? NormVariantNames{"rows in lanes, 16-byte accesses",
                               "a row in shared memory, 16-byte accesses",
                               "a row across a cluster, 16-byte accesses",
                               "a row read twice, 16-byte accesses"}
            : NormVariantNames{"rows in lanes", "a row in shared memory", "a row across a cluster",
                               "a row read twice"};

// Elements of a row for each of its blocks: whole accesses.
template <typename Shape, typename T>
int64_t share_of_block(const NormRows& rows) {
  constexpr int kElements = Shape::template kElements<T>;
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  return quotient(quotient(rows.n, rows.blocks), kElements) * kElements;
}

// One block group per partial sum; without sums, as many groups as can be resident.
inline Launch launch_of_groups(Planner& planner, NormRows& rows) {
  if (rows.groups == 0) {
    const int64_t blocks =
        planner.tuned(rows.blocks <= 2 ? Tunable::kNormBackwardGroupsWithoutSums
                                       : Tunable::kNormBackwardClusteredGroupsWithoutSums);
    const int64_t groups = std::max<int64_t>(blocks / rows.blocks, 1);
    rows.groups = static_cast<int>(std::min(groups, rows.count));
  }
  Launch how{static_cast<unsigned>(rows.groups * rows.blocks), kNormThreads};
  how.cluster_blocks = static_cast<unsigned>(rows.blocks);
  return how;
}

// How a shape shares out rows, and its launch. Nothing if a row does not fit into `most_blocks`
// blocks.
template <typename Shape, typename T>
std::optional<Launch> share_out_norm(Planner& planner, NormRows& rows, int weight_accesses,
                                     int64_t most_blocks) {
  constexpr int kColumns = Shape::template kColumns<T>;
  constexpr int64_t kMost = kNormThreads * kColumns;  // of a row's elements, for a block
  rows.blocks = 1;
  while (rows.blocks < most_blocks && rows.blocks * kMost < rows.n) rows.blocks *= 2;
  rows.share = share_of_block<Shape, T>(rows);
  if (rows.share > kMost) return {};
  rows.log_team = 0;
  while ((1 << rows.log_team) * kColumns < rows.share) ++rows.log_team;
  const int team = 1 << rows.log_team;
  Launch how = launch_of_groups(planner, rows);
  const int weight_bytes = Shape::kPartBytes * weight_accesses * std::max(team, kWarpLanes);
  const int stage_bytes = rows.arrays * Shape::kPartBytes * kNormThreads;
  const int room = planner.device.shared_bytes() - kNormOtherBytes - weight_bytes;
  const auto stages = static_cast<int>(planner.tuned(Tunable::kNormBackwardStages));
  rows.stages = std::min(room / stage_bytes, stages);
  if (rows.stages < 1) return {};
  how.shared_bytes = static_cast<std::size_t>(weight_bytes + rows.stages * stage_bytes);
  return how;
}

// As above for two-pass rows: `blocks` per row, `fields` sums.
template <typename Shape, typename T>
Launch share_out_streaming_norm(Planner& planner, NormRows& rows, int blocks, int fields) {
  rows.blocks = blocks;
  rows.share = share_of_block<Shape, T>(rows);
  rows.log_team = 0;
  while (1 << rows.log_team < kNormThreads) ++rows.log_team;
  const int64_t field_bytes = rows.share * static_cast<int64_t>(sizeof(compute_t<T>));
  const int room = planner.device.shared_bytes() - kNormOtherBytes;
  rows.smem_fields = static_cast<int>(std::min<int64_t>(room / field_bytes, fields));
  Launch how = launch_of_groups(planner, rows);
  how.shared_bytes = static_cast<std::size_t>(rows.smem_fields * field_bytes);
  return how;
}

// Plans the kernel Kernels::rows<Shape>() or, if no shape holds a row, Kernels::streaming<Shape>(),
// and, where there is something to add up, Kernels::sum<elements>().
template <bool kIsCentered, typename T, typename Kernels>
void launch_norm_backward(Planner& planner, const NormOperands& operands) {
  using Compute = compute_t<T>;
  using Shapes = NormBackwardShapes<T>;
  constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(T));
  const auto statistics =
      statistics_of<const Compute, kIsCentered>(operands.grad_input, &operands.statistics);
  const auto mean = statistics.mean, rstd = statistics.rstd;
  const int64_t count = statistics.shape.numel;
  const bool has_wide_weight =
      operands.weight != nullptr && operands.weight->dtype != operands.grad_input.dtype;
  const int weight_accesses = has_wide_weight ? sizeof(Compute) / sizeof(T) : 1;

  const int64_t n = operands.grad_input.sizes[operands.grad_input.rank - 1];
  planner.choose("rows", {count, n}, {&operands.grad_input, operands.grad_sum, operands.weight});
  NormRows rows{};
  rows.arrays = operands.grad_sum == nullptr ? 2 : 3;
  rows.n = n;
  // What is asked for of the derivatives that are sums over rows, weight first.
  const Operand* asked[2] = {};
  int fields = 0;
  for (const Operand* gradient : {operands.grad_weight, operands.grad_bias}) {
    if (gradient != nullptr) asked[fields++] = gradient;
  }
  Address<Compute> sums, weight_sums, bias_sums;
  if (fields > 0) {
    rows.groups = groups_of_rows(planner, count, rows.n * static_cast<int64_t>(sizeof(T)));
    const int64_t field = rows.groups * rows.n;
    sums = planner.need({fields * field * static_cast<int64_t>(sizeof(Compute))})
               .template as<Compute>();
    if (operands.grad_weight != nullptr) weight_sums = sums;
    if (operands.grad_bias != nullptr) bias_sums = sums + (fields - 1) * field;
  }
  const auto arrays = [mean, rstd, weight_accesses, weight_sums, bias_sums,
                       grad_output = operands.grad_output.as<const T>(),
                       input = operands.input.as<const T>(),
                       grad_sum = address_of<const T>(operands.grad_sum),
                       weight = address_of<const void>(operands.weight),
                       grad_input = operands.grad_input.as<T>()](const Arguments& now) {
    NormGradients<T> result{};
    result.grad_output = grad_output(now), result.input = input(now);
    result.grad_sum = grad_sum(now);
    result.mean = mean(now), result.rstd = rstd(now);
    result.weight = weight(now), result.weight_accesses = weight_accesses;
    result.weight_sums = weight_sums(now), result.bias_sums = bias_sums(now);
    result.grad_input = grad_input(now);
    return result;
  };

  if (count > 0) {
    const Operand views[] = {
        outer_dimensions(operands.grad_input), outer_dimensions(operands.grad_output),
        outer_dimensions(operands.input),
        outer_dimensions(operands.grad_sum == nullptr ? operands.grad_input : *operands.grad_sum),
        outer_dimensions(statistics.shape)};
    const Layout<kNormArrays> layout({&views[0], &views[1], &views[2], &views[3], &views[4]});
    bool is_wide = rows.n % kElements == 0;
    for (int a = 0; a < kStatistics; ++a) {
      is_wide &= views[a].is_aligned() && layout.has_multiples(a, kElements, 0);
    }
    layout.template for_each_slice<int64_t>([&](int64_t slice, const auto& starts) {
      rows.count = slice, rows.starts = starts;
      const auto attempt = [&](auto shape, int64_t most_blocks) {
        using Shape = decltype(shape);
        if (fields == 0) rows.groups = 0;
        const std::optional<Launch> how =
            share_out_norm<Shape, T>(planner, rows, weight_accesses, most_blocks);
        if (!how.has_value()) return false;
        constexpr auto kKernel = Kernels::template rows<Shape>();
        if (how->cluster_blocks > 1 && !planner.has_clusters<kKernel>(*how)) return false;
        constexpr const NormVariantNames& kNames = kNormVariantNames<Shape::kIsWide>;
        planner.plan.variant = rows.blocks > 1                    ? kNames.in_cluster
                               : 1 << rows.log_team <= kWarpLanes ? kNames.in_lanes
                                                                  : kNames.in_block;
        planner.add<kKernel>(*how, rows, arrays);
        return true;
      };
      const auto attempt_wide = [&] {
        const int64_t most = planner.tuned(Tunable::kNormBackwardWideBlocks, sizeof(T));
        return attempt(typename Shapes::Wide{}, most) ||
               attempt(typename Shapes::Long{}, kMostClusterBlocks);
      };
      const auto attempt_streaming = [&](auto shape, int blocks) {
        using Shape = decltype(shape);
        if (fields == 0) rows.groups = 0;
        const Launch how = share_out_streaming_norm<Shape, T>(planner, rows, blocks, fields);
        constexpr auto kKernel = Kernels::template streaming<Shape>();
        if (blocks > 1 && !planner.has_clusters<kKernel>(how)) return false;
        planner.plan.variant = kNormVariantNames<Shape::kIsWide>.two_pass;
        planner.add<kKernel>(how, rows, arrays);
        return true;
      };
      const auto stream = [&](auto shape) {
        for (int blocks : {kMostClusterBlocks, kPortableClusterBlocks, 1}) {
          const bool is_wanted = blocks <= planner.tuned(Tunable::kNormBackwardStreamingBlocks);
          if (is_wanted && attempt_streaming(shape, blocks)) return;
        }
      };
      const bool is_held =
          rows.n <= planner.tuned(Tunable::kNormBackwardLongestHeld) &&
          ((is_wide && attempt_wide()) || attempt(typename Shapes::Narrow{}, kMostClusterBlocks));
      const bool are_weights_wide = operands.weight == nullptr || operands.weight->is_aligned();
      if (!is_held && is_wide && are_weights_wide) {
        stream(typename Shapes::template Streaming<true>{});
      } else if (!is_held) {
        stream(typename Shapes::template Streaming<false>{});
      }
      rows.accumulates = true;
    });
  }
  if (fields == 0) return;
  const auto outputs = [first = asked[0]->as<void>(),
                        second = address_of<void>(asked[1])](const Arguments& now) {
    return NormSumOutputs{{first(now), second(now)}};
  };
  const int groups = count == 0 ? 0 : rows.groups;
  const auto sum = [&](auto elements) {
    constexpr int kTaken = decltype(elements)::value;
    const int64_t accesses = rows.n / kTaken;
    // As deep as there are groups to read, but a line of memory wide.
    auto side = static_cast<int>(planner.tuned(Tunable::kNormBackwardSumSide));
    while (side < kNormSumThreads && kNormSumThreads / side * kNormSumLoads > 2 * groups) side *= 2;
    Launch how{dim3(blocks_for(accesses, side), static_cast<unsigned>(fields)), kNormSumThreads};
    how.uses_pdl = true;
    planner.add<Kernels::template sum<kTaken>()>(how, rows.n, groups, side, sums, outputs,
                                                 asked[0]->dtype);
  };
  constexpr int kVector = kAccessBytes / static_cast<int>(sizeof(Compute));
  if (rows.n % kVector == 0) {
    sum(std::integral_constant<int, kVector>{});
  } else {
    sum(std::integral_constant<int, 1>{});
  }
}

}  // namespace diglot
