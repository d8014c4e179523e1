// Host side of the norms' derivatives: the choice among ways to share out rows, and the launches.
// Twin of triton_ops/launch/norm_backward.py.
#pragma once

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "diglot/launch/norm_backward_shares.h"
#include "diglot/launch/norm_forward.h"
#include "diglot/launch/norm_shapes.h"
#include "diglot/launch/plan.h"
#include "diglot/norm/backward_resident.cuh"
#include "diglot/norm/backward_streaming.cuh"
#include "diglot/norm/group_sums.cuh"

namespace diglot {

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

// Plans the kernel Kernels::rows<Shape>(), or Kernels::streaming<Shape>() if no shape holds a row.
// Then plans Kernels::sum<elements>() if there are sums over rows, unless one group has all rows.
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
  NormStridedRows rows{};
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
  // The requested derivatives that are sums over rows, weight first.
  const Operand* asked[2] = {};
  int fields = 0;
  for (const Operand* gradient : {operands.grad_weight, operands.grad_bias}) {
    if (gradient != nullptr) asked[fields++] = gradient;
  }
  const bool are_sums_aligned =
      std::all_of(asked, asked + fields, [](const Operand* each) { return each->is_aligned(); });
  if (fields > 0) {
    rows.groups = groups_of_rows<T>(planner, count, rows.n, rows.arrays);
  }
  rows.order = order_of_sums<T>(n, false);
  const int64_t field = rows.groups * rows.order.pitch;
  // Where the groups' sums are until the second launch.
  const auto need_sums = [&] {
    return planner.need({fields * field * static_cast<int64_t>(sizeof(Compute))})
        .template as<Compute>();
  };
  const auto arrays_of = [&](bool gives_results, const Address<char>& mail) {
    Address<Compute> weight_sums, bias_sums;
    Address<void> weight_result, bias_result;
    if (gives_results) {
      weight_result = address_of<void>(operands.grad_weight);
      bias_result = address_of<void>(operands.grad_bias);
    } else if (fields > 0) {
      const auto sums = need_sums();
      if (operands.grad_weight != nullptr) weight_sums = sums;
      if (operands.grad_bias != nullptr) bias_sums = sums + (fields - 1) * field;
    }
    const Compute share = Compute(1) / static_cast<Compute>(n);
    return [=, is_result_wide = fields > 0 && asked[0]->dtype != operands.grad_input.dtype,
            barrier = mail.template as<uint32_t>(), states = mail + kBarrierBytes,
            grad_output = operands.grad_output.as<const T>(), input = operands.input.as<const T>(),
            grad_sum = address_of<const T>(operands.grad_sum),
            weight = address_of<const void>(operands.weight),
            grad_input = operands.grad_input.as<T>()](const Arguments& now) {
      NormGradients<T> result{};
      result.grad_output = grad_output(now), result.input = input(now);
      result.grad_sum = grad_sum(now);
      result.mean = mean(now), result.rstd = rstd(now), result.share = share;
      result.weight = weight(now), result.is_weight_wide = is_weight_wide;
      result.weight_sums = weight_sums(now), result.bias_sums = bias_sums(now);
      result.results[0] = weight_result(now), result.results[1] = bias_result(now);
      result.is_result_wide = is_result_wide;
      result.barrier = barrier(now), result.mail = states(now);
      result.grad_input = grad_input(now);
      return result;
    };
  };

  const bool is_invariant = planner.tuned(Tunable::kRowsPlannedRows) > 0;
  bool gives_results = false;
  if (count > 0) {
    const auto slices = layout.template slices<int64_t>();
    for (const auto& [slice, starts] : slices) {
      rows.count = slice, rows.starts = starts;
      if (fields == 0) rows.groups = 0;
      // Few long rows may have one group, whose sums are the results.
      const bool is_one = slices.size() == 1;
      const int64_t kibibytes = (n * static_cast<int64_t>(sizeof(T)) + 1023) / 1024;
      const int64_t most_alone = planner.tuned(Tunable::kNormBackwardOneGroupRows, kibibytes);
      const bool may_be_alone = is_one && !is_invariant && slice <= most_alone;
      const auto attempt = [&](auto shape, const NormFit& fit) {
        using Shape = decltype(shape);
        constexpr auto kKernel = Kernels::template rows<Shape>();
        if (fit.rows.spans_cluster() && !planner.has_clusters<kKernel>(fit.how)) return false;
        if (fit.rows.spans_grid && !planner.has_room<kKernel>(fit.how)) return false;
        constexpr const NormVariantNames& kNames = kNormVariantNames<Shape>;
        planner.plan.variant = fit.rows.spans_grid           ? kNames.in_grid
                               : fit.rows.blocks > 1         ? kNames.in_cluster
                               : fit.rows.team <= kWarpLanes ? kNames.in_lanes
                                                             : kNames.in_block;
        gives_results =
            is_one && fields > 0 && fit.rows.groups == 1 && (!Shape::kIsWide || are_sums_aligned);
        Address<char> mail;
        if (fit.rows.spans_grid) mail = need_mail<NormSums<Compute, kIsCentered>>(planner, fit);
        planner.add<kKernel>(fit.how, fit.rows, arrays_of(gives_results, mail));
        rows.groups = fit.rows.groups, rows.order = fit.rows.order;
        return true;
      };
      // The shape with the least cost comes first. Of few blocks the model is surer: twice as many
      // must save a twentieth.
      const auto attempt_shapes = [&](auto shapes, int least_stages) {
        std::vector<std::pair<double, std::function<bool()>>> found;
        // `unsure`: a factor of the cost.
        const auto look = [&](auto shape, int groups, int blocks, bool spans_grid, double unsure) {
          using Shape = decltype(shape);
          NormStridedRows wanted = rows;
          wanted.order = order_of_sums<T>(n, Shape::kIsWide);
          wanted.groups = groups, wanted.spans_grid = spans_grid;
          const auto fit = share_out_norm<Shape, T>(planner, wanted, blocks, least_stages);
          wanted.count = planned_rows(planner, rows.count);
          if (fields > 0 && wanted.count != rows.count) {
            wanted.groups = groups_of_rows<T>(planner, wanted.count, n, rows.arrays);
          }
          const auto judged = share_out_norm<Shape, T>(planner, wanted, blocks, least_stages);
          if (!fit.has_value() || !judged.has_value()) return;
          const bool is_alone = fields > 0 && is_one && judged->rows.groups == 1;
          const int64_t sums = wanted.order.pitch * judged->rows.groups * fields;
          const int64_t added = predict_sum_cycles(std::max(planner.device.multiprocessors(), 1),
                                                   sums * static_cast<int64_t>(sizeof(Compute)));
          const int64_t cost = judged->cost + (is_alone || fields == 0 ? 0 : added);
          found.emplace_back(static_cast<double>(cost) * unsure,
                             [=] { return attempt(shape, *fit); });
        };
        const auto look_at_all = [&](auto... way) {
          std::apply([&](auto... shape) { (look(shape, way...), ...); }, shapes);
        };
        double unsure = 1;
        for (int blocks = 1; blocks <= kMostClusterBlocks; blocks *= 2, unsure *= 1.05) {
          look_at_all(rows.groups, blocks, false, unsure);
          if (may_be_alone && rows.groups > 1) look_at_all(1, blocks, false, unsure);
        }
        const int64_t most = std::min<int64_t>(planner.tuned(Tunable::kNormBackwardGridBlocks),
                                               planner.device.multiprocessors());
        for (int64_t blocks = 2; may_be_alone && blocks < 2 * most; blocks *= 2) {
          look_at_all(1, static_cast<int>(std::min(blocks, most)), true, 1.1);
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
        planner.add<kKernel>(how, rows, arrays_of(false, {}));
        return true;
      };
      const auto stream = [&](auto shape) {
        for (int blocks : {kMostClusterBlocks, kPortableClusterBlocks, 1}) {
          const bool is_wanted = blocks <= planner.tuned(Tunable::kNormBackwardStreamingBlocks);
          if (is_wanted && attempt_streaming(shape, blocks)) return;
        }
      };
      const auto attempt_lists = [&](auto wide, auto narrow) {
        return (is_wide && attempt_held(wide)) || attempt_held(narrow);
      };
      const bool is_held =
          may_hold &&
          (starts.rank > 1
               ? attempt_lists(typename Shapes::StridedWide{}, typename Shapes::StridedNarrow{})
               : attempt_lists(typename Shapes::Wide{}, typename Shapes::Narrow{}));
      const bool are_weights_wide = operands.weight == nullptr || operands.weight->is_aligned();
      if (!is_held && is_wide && are_weights_wide) {
        stream(typename Shapes::template Streaming<true>{});
      } else if (!is_held) {
        stream(typename Shapes::template Streaming<false>{});
      }
      rows.accumulates = true;
    }
  }
  if (fields == 0 || gives_results) return;
  const auto outputs = [first = asked[0]->as<void>(),
                        second = address_of<void>(asked[1])](const Arguments& now) {
    return NormSumOutputs{{first(now), second(now)}};
  };
  const int groups = count == 0 ? 0 : rows.groups;
  constexpr int kTaken = kAccessBytes / static_cast<int>(sizeof(Compute));
  const int64_t accesses = rows.order.pitch / kTaken;
  // A block is as deep as there are groups to read, but at least a line of memory wide.
  auto side = static_cast<int>(planner.tuned(Tunable::kNormBackwardSumSide));
  while (side < kNormSumThreads && kNormSumThreads / side * kNormSumLoads > 2 * groups) side *= 2;
  Launch how{dim3(blocks_for(accesses, side), static_cast<unsigned>(fields)), kNormSumThreads};
  how.uses_pdl = true;
  planner.add<Kernels::template sum<kTaken>()>(how, rows.n, groups, side, rows.order, need_sums(),
                                               outputs, asked[0]->dtype);
}

}  // namespace diglot
