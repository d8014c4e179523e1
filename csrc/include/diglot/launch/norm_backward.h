// Host side of the norms' derivatives: who holds a row, and the two launches. Twin of
// triton_ops/launch/norm_backward.py.
#pragma once

#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "diglot/launch/norm_backward_model.h"
#include "diglot/launch/norm_forward.h"
#include "diglot/launch/norm_shapes.h"
#include "diglot/launch/plan.h"
#include "diglot/norm/backward_resident.cuh"
#include "diglot/norm/backward_streaming.cuh"
#include "diglot/norm/group_sums.cuh"

namespace diglot {

// How many groups of rows have sums of their own. The number sets the order of summation.
template <typename T>
int groups_of_rows(Planner& planner, int64_t count, int64_t n, int arrays) {
  // Bytes of shared memory for a row, with its weights and a stage of the row after it.
  const int64_t bytes = n * static_cast<int64_t>(2 * arrays * sizeof(T) + sizeof(compute_t<T>));
  const int64_t groups = planner.tuned(Tunable::kNormBackwardGroups, (bytes + 1023) / 1024);
  const int64_t enough = planner.tuned(Tunable::kNormBackwardEnoughGroups);
  const int64_t each = planner.tuned(Tunable::kNormBackwardRowsEach);
  const int64_t wanted = std::max(enough, (count + each - 1) / each);
  return static_cast<int>(std::max<int64_t>(std::min({groups, count, wanted}), 1));
}

inline Numbers order_of(const NormRows& rows) {
  return {
      {"groups", rows.groups}, {"blocks", rows.blocks}, {"share", rows.share}, {"team", rows.team}};
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

// An array of rows without its last dimension, which is normalized.
inline Operand outer_dimensions(Operand operand) {
  --operand.rank;
  return operand;
}

// Elements of a row in each of its blocks: whole accesses.
template <typename Shape, typename T>
int64_t share_of_block(const NormRows& rows) {
  constexpr int kElements = Shape::template kElements<T>;
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t n = rows.n + (Shape::kIsPeeled ? kElements - 1 : 0);
  return quotient(quotient(n, rows.blocks), kElements) * kElements;
}

// Whether rows can be peeled. In all arrays a row must start equally far from a multiple of 16
// bytes. An access that reaches beyond a row must end in a neighbouring row.
template <typename T>
bool are_peeled(const Operand (&views)[kNormArrays], const Layout<kNormArrays>& layout) {
  constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(T));
  for (int a = 0; a < kStatistics; ++a) {
    if (views[a].remainder != views[0].remainder || !views[a].is_aligned(sizeof(T))) return false;
    if (layout.rank == 0) continue;
    const int64_t step = layout.strides[0][a];
    if (step < kElements || (step - layout.strides[0][0]) % kElements != 0) return false;
  }
  return layout.rank <= 1;
}

template <typename T>
NormSumOrder order_by_access(int64_t n, bool is_peeled, const Operand& view,
                             const Layout<kNormArrays>& layout) {
  constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(T));
  constexpr int kSums = kAccessBytes / static_cast<int>(sizeof(compute_t<T>));
  NormSumOrder order{n};
  while (1 << order.access_bits < kElements) ++order.access_bits;
  while (1 << order.plane_bits < kSums) ++order.plane_bits;
  if (!is_peeled) return order;
  order.pitch = (n + 2 * kElements - 2) / kElements * kElements;
  order.first_skipped = static_cast<int>(view.remainder / sizeof(T));
  if (layout.rank > 0) order.skipped_step = static_cast<int>(layout.strides[0][0] % kElements);
  return order;
}

// The distance in rows to the next that begins alike. Rows of a group are a multiple of it apart.
inline int period_of(const NormSumOrder& order) {
  int period = 1;
  while (((period * order.skipped_step) & ((1 << order.access_bits) - 1)) != 0) ++period;
  return period;
}
inline int groups_alike(const NormSumOrder& order, int64_t groups, int64_t count) {
  const int period = period_of(order);
  return static_cast<int>(groups < count && groups > period ? groups / period * period : groups);
}

// Without sums: as many groups as can be resident. A block, or a cluster, walks each.
inline void count_groups(Planner& planner, NormRows& rows) {
  if (rows.groups != 0) return;
  const int64_t blocks =
      planner.tuned(rows.blocks <= 2 ? Tunable::kNormBackwardGroupsWithoutSums
                                     : Tunable::kNormBackwardClusteredGroupsWithoutSums);
  const int64_t groups = std::max<int64_t>(blocks / rows.blocks, 1);
  rows.groups = groups_alike(rows.order, std::min(groups, rows.count), rows.count);
}

inline Launch launch_of_groups(const NormRows& rows, int threads) {
  Launch how{static_cast<unsigned>(rows.groups * rows.blocks), static_cast<unsigned>(threads)};
  how.cluster_blocks = static_cast<unsigned>(rows.blocks);
  return how;
}

// How a shape shares out rows, and at which cost.
struct NormFit {
  NormRows rows;
  Launch how;
  int64_t cost;  // the predicted time, in cycles of an SM
};

// Nothing if a row does not fit into `blocks` blocks with at least `least_stages` stages.
template <typename Shape, typename T>
std::optional<NormFit> share_out_norm(Planner& planner, NormRows rows, int blocks,
                                      int least_stages) {
  constexpr int kColumns = Shape::template kColumns<T>;
  constexpr int64_t kMost = kNormResidentThreads * kColumns;  // elements that a block can hold
  constexpr int kWarpColumns = kWarpLanes * kColumns;
  rows.blocks = blocks;
  rows.share = share_of_block<Shape, T>(rows);
  if (rows.share > kMost) return {};
  count_groups(planner, rows);
  if (rows.groups < rows.count && rows.groups % period_of(rows.order) != 0) return {};
  rows.team = kWarpLanes * static_cast<int>((rows.share + kWarpColumns - 1) / kWarpColumns);
  // Only a team within one block, with one access per thread or single elements, is below a warp.
  constexpr bool kHasLanes = Shape::kAccesses == 1 || !Shape::kIsWide;
  while (kHasLanes && blocks == 1 && rows.team <= kWarpLanes &&
         rows.team / 2 * kColumns >= rows.share) {
    rows.team /= 2;
  }
  // As many teams as rows, threads, and room for enough stages allow. A cluster has one.
  constexpr int kWeightParts = sizeof(compute_t<T>) / sizeof(T);
  const auto wanted = static_cast<int>(planner.tuned(Tunable::kNormBackwardThreads));
  const int most_threads = std::min(kNormResidentThreads, std::max(wanted, rows.team));
  // Where sums must not depend on the GPU, those of an H200.
  const bool is_invariant = planner.tuned(Tunable::kRowsPlannedRows) > 0;
  const int multiprocessors = is_invariant ? 132 : std::max(planner.device.multiprocessors(), 1);
  const int beside =
      std::clamp(rows.groups * blocks / multiprocessors, 1, kNormResidentThreads / most_threads);
  const int room = (planner.device.shared_bytes() / beside - kNormOtherBytes) / Shape::kPartBytes;
  const int64_t each = (rows.count + rows.groups - 1) / rows.groups;
  const int threads = std::min(most_threads, room / (kWeightParts + least_stages * rows.arrays));
  const auto teams =
      static_cast<int>(std::min<int64_t>(threads / rows.team, blocks > 1 ? 1 : each));
  if (teams < 1) return {};
  const int warps = (teams * rows.team + kWarpLanes - 1) / kWarpLanes;
  NormFit fit{rows, launch_of_groups(rows, warps * kWarpLanes)};
  const auto stages = static_cast<int>(planner.tuned(Tunable::kNormBackwardStages));
  fit.rows.stages = std::min((room / (warps * kWarpLanes) - kWeightParts) / rows.arrays, stages);
  if (fit.rows.stages < least_stages) return {};
  const int parts = kWeightParts + fit.rows.stages * rows.arrays;
  fit.how.shared_bytes = static_cast<std::size_t>(parts * warps * kWarpLanes * Shape::kPartBytes);
  const int64_t at_once = warps * kWarpLanes / rows.team;
  const int64_t bytes = (rows.arrays + 1) * rows.count * rows.n * static_cast<int64_t>(sizeof(T));
  fit.cost = predict_cycles(multiprocessors, planner.device.shared_bytes(),
                            {kColumns, Shape::kIsWide, Shape::kIsPeeled,
                             (each + at_once - 1) / at_once, int64_t{rows.groups} * blocks, blocks,
                             warps, static_cast<int64_t>(fit.how.shared_bytes), bytes});
  return fit;
}

// The same for two-pass rows: `blocks` per row, `fields` sums.
template <typename Shape, typename T>
Launch share_out_streaming_norm(Planner& planner, NormRows& rows, int blocks, int fields) {
  rows.blocks = blocks;
  rows.share = share_of_block<Shape, T>(rows);
  rows.team = kNormThreads;
  const int64_t field_bytes = rows.share * static_cast<int64_t>(sizeof(compute_t<T>));
  const int room = planner.device.shared_bytes() - kNormOtherBytes;
  rows.smem_fields = static_cast<int>(std::min<int64_t>(room / field_bytes, fields));
  count_groups(planner, rows);
  Launch how = launch_of_groups(rows, kNormThreads);
  how.shared_bytes = static_cast<std::size_t>(rows.smem_fields * field_bytes);
  return how;
}

// Plans the kernel Kernels::rows<Shape>(), or Kernels::streaming<Shape>() if no shape holds a row.
// Then plans Kernels::sum<elements>() if there are sums over rows.
template <bool kIsCentered, typename T, typename Kernels>
void launch_norm_backward(Planner& planner, const NormOperands& operands) {
  using Compute = compute_t<T>;
  using Shapes = NormBackwardShapes<T>;
  constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(T));
  const auto statistics =
      statistics_of<const Compute, kIsCentered>(operands.grad_input, &operands.statistics);
  const auto mean = statistics.mean, rstd = statistics.rstd;
  const int64_t count = statistics.shape.numel;
  const bool is_weight_wide =
      operands.weight != nullptr && operands.weight->dtype != operands.grad_input.dtype;

  const int64_t n = operands.grad_input.sizes[operands.grad_input.rank - 1];
  const bool is_cut = n % kElements != 0 || !operands.grad_input.is_aligned() ||
                      !operands.grad_output.is_aligned() || !operands.input.is_aligned();
  planner.choose(is_cut ? "rows" : "rows, 16-byte accesses", {count, n},
                 {&operands.grad_input, operands.grad_sum, operands.weight});
  NormRows rows{};
  rows.arrays = operands.grad_sum == nullptr ? 2 : 3;
  rows.n = n;
  const Operand views[] = {
      outer_dimensions(operands.grad_input), outer_dimensions(operands.grad_output),
      outer_dimensions(operands.input),
      outer_dimensions(operands.grad_sum == nullptr ? operands.grad_input : *operands.grad_sum),
      outer_dimensions(statistics.shape)};
  const Layout<kNormArrays> layout({&views[0], &views[1], &views[2], &views[3], &views[4]});
  bool is_wide = n % kElements == 0;
  for (int a = 0; a < kStatistics; ++a) {
    is_wide &= views[a].is_aligned() && layout.has_multiples(a, kElements, 0);
  }
  const bool may_hold = n <= planner.tuned(Tunable::kNormBackwardLongestHeld);
  const bool is_peeled = may_hold && !is_wide && are_peeled<T>(views, layout);
  const NormSumOrder by_access = order_by_access<T>(n, is_peeled, views[0], layout);
  const NormSumOrder by_column{by_access.pitch};
  // The requested derivatives that are sums over rows, weight first.
  const Operand* asked[2] = {};
  int fields = 0;
  for (const Operand* gradient : {operands.grad_weight, operands.grad_bias}) {
    if (gradient != nullptr) asked[fields++] = gradient;
  }
  Address<Compute> sums, weight_sums, bias_sums;
  if (fields > 0) {
    rows.groups = groups_of_rows<T>(planner, count, rows.n, rows.arrays);
    rows.groups = groups_alike(by_access, rows.groups, count);
    const int64_t field = rows.groups * by_access.pitch;
    sums = planner.need({fields * field * static_cast<int64_t>(sizeof(Compute))})
               .template as<Compute>();
    if (operands.grad_weight != nullptr) weight_sums = sums;
    if (operands.grad_bias != nullptr) bias_sums = sums + (fields - 1) * field;
  }
  const auto arrays = [mean, rstd, is_weight_wide, weight_sums, bias_sums,
                       grad_output = operands.grad_output.as<const T>(),
                       input = operands.input.as<const T>(),
                       grad_sum = address_of<const T>(operands.grad_sum),
                       weight = address_of<const void>(operands.weight),
                       grad_input = operands.grad_input.as<T>()](const Arguments& now) {
    NormGradients<T> result{};
    result.grad_output = grad_output(now), result.input = input(now);
    result.grad_sum = grad_sum(now);
    result.mean = mean(now), result.rstd = rstd(now);
    result.weight = weight(now), result.is_weight_wide = is_weight_wide;
    result.weight_sums = weight_sums(now), result.bias_sums = bias_sums(now);
    result.grad_input = grad_input(now);
    return result;
  };

  rows.order = by_column;
  if (count > 0) {
    for (const auto& [slice, starts] : layout.template slices<int64_t>()) {
      rows.count = slice, rows.starts = starts;
      if (fields == 0) rows.groups = 0;
      const auto attempt = [&](auto shape, const NormFit& fit) {
        using Shape = decltype(shape);
        constexpr auto kKernel = Kernels::template rows<Shape>();
        if (fit.rows.blocks > 1 && !planner.has_clusters<kKernel>(fit.how)) return false;
        constexpr const NormVariantNames& kNames = kNormVariantNames<Shape>;
        planner.plan.variant = fit.rows.blocks > 1           ? kNames.in_cluster
                               : fit.rows.team <= kWarpLanes ? kNames.in_lanes
                                                             : kNames.in_block;
        planner.add<kKernel>(fit.how, fit.rows, arrays);
        rows.groups = fit.rows.groups, rows.order = fit.rows.order;
        return true;
      };
      // The shape with the least cost comes first. Of few blocks the model is surer: twice as many
      // must save a tenth.
      const auto attempt_shapes = [&](auto shapes, int least_stages) {
        std::vector<std::pair<double, std::function<bool()>>> found;
        double unsure = 1;
        for (int blocks = 1; blocks <= kMostClusterBlocks; blocks *= 2, unsure *= 1.1) {
          const auto look = [&](auto shape) {
            using Shape = decltype(shape);
            rows.order = Shape::kIsWide ? by_access : by_column;
            const auto fit = share_out_norm<Shape, T>(planner, rows, blocks, least_stages);
            NormRows planned = rows;
            planned.count = planned_rows(planner, rows.count);
            if (fields > 0 && planned.count != rows.count) {
              const int groups = groups_of_rows<T>(planner, planned.count, n, rows.arrays);
              planned.groups = groups_alike(by_access, groups, planned.count);
            }
            const auto judged = share_out_norm<Shape, T>(planner, planned, blocks, least_stages);
            if (!fit.has_value() || !judged.has_value()) return;
            const auto cost = static_cast<double>(judged->cost) * unsure;
            found.emplace_back(cost, [=] { return attempt(shape, *fit); });
          };
          std::apply([&](auto... shape) { (look(shape), ...); }, shapes);
        }
        std::stable_sort(found.begin(), found.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
        int64_t skipped = planner.tuned(Tunable::kNormBackwardSkippedShapes);
        return std::any_of(found.begin(), found.end(),
                           [&](const auto& each) { return skipped-- <= 0 && each.second(); });
      };
      // One stage is the last resort: rows then wait for their copies.
      const auto attempt_held = [&](auto shapes) {
        const auto stages = static_cast<int>(planner.tuned(Tunable::kNormBackwardStages));
        return attempt_shapes(shapes, std::min(stages, 2)) || attempt_shapes(shapes, 1);
      };
      const auto attempt_streaming = [&](auto shape, int blocks) {
        using Shape = decltype(shape);
        const Launch how = share_out_streaming_norm<Shape, T>(planner, rows, blocks, fields);
        constexpr auto kKernel = Kernels::template streaming<Shape>();
        if (blocks > 1 && !planner.has_clusters<kKernel>(how)) return false;
        planner.plan.variant = kNormVariantNames<Shape>.two_pass;
        planner.add<kKernel>(how, rows, arrays);
        return true;
      };
      const auto stream = [&](auto shape) {
        for (int blocks : {kMostClusterBlocks, kPortableClusterBlocks, 1}) {
          const bool is_wanted = blocks <= planner.tuned(Tunable::kNormBackwardStreamingBlocks);
          if (is_wanted && attempt_streaming(shape, blocks)) return;
        }
      };
      const auto attempt_all = [&] {
        const std::tuple narrow(typename Shapes::Narrow{});
        if (is_wide && attempt_held(typename Shapes::Wide{})) return true;
        return is_peeled ? attempt_held(std::tuple_cat(typename Shapes::Peeled{}, narrow))
                         : attempt_held(narrow);
      };
      const bool is_held = may_hold && attempt_all();
      if (!is_held) rows.order = by_column;
      const bool are_weights_wide = operands.weight == nullptr || operands.weight->is_aligned();
      if (!is_held && is_wide && are_weights_wide) {
        stream(typename Shapes::template Streaming<true>{});
      } else if (!is_held) {
        stream(typename Shapes::template Streaming<false>{});
      }
      rows.accumulates = true;
    }
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
    // A block is as deep as there are groups to read, but at least a line of memory wide.
    auto side = static_cast<int>(planner.tuned(Tunable::kNormBackwardSumSide));
    while (side < kNormSumThreads && kNormSumThreads / side * kNormSumLoads > 2 * groups) side *= 2;
    Launch how{dim3(blocks_for(accesses, side), static_cast<unsigned>(fields)), kNormSumThreads};
    how.uses_pdl = true;
    planner.add<Kernels::template sum<kTaken>()>(how, rows.n, groups, side, rows.order, sums,
                                                 outputs, asked[0]->dtype);
  };
  constexpr int kVector = kAccessBytes / static_cast<int>(sizeof(Compute));
  // Whole accesses would take the places behind a peeled row's end for columns.
  if (rows.n % kVector == 0 && rows.order.pitch == rows.n && !rows.order.skips()) {
    sum(std::integral_constant<int, kVector>{});
  } else {
    sum(std::integral_constant<int, 1>{});
  }
}

}  // namespace diglot
