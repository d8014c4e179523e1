// How groups, blocks and teams share out the rows of norms' derivatives, and at which cost.
#pragma once

#include <optional>

#include "diglot/launch/norm_backward_model.h"
#include "diglot/launch/plan.h"

namespace diglot {

// How many groups of rows have sums of their own. The number sets the order of summation.
template <typename T>
int groups_of_rows(Planner& planner, int64_t count, int64_t n, int arrays) {
  // Bytes of shared memory for a row, with its weights and a stage of the row after it.
  const int64_t bytes = n * static_cast<int64_t>(2 * arrays * sizeof(T) + sizeof(compute_t<T>));
  const int64_t kibibytes = (bytes + 1023) / 1024;
  const int64_t groups = planner.tuned(Tunable::kNormBackwardGroups, kibibytes);
  const int64_t enough = planner.tuned(Tunable::kNormBackwardEnoughGroups, kibibytes);
  const int64_t each = planner.tuned(Tunable::kNormBackwardRowsEach);
  const int64_t wanted = std::max(enough, (count + each - 1) / each);
  return static_cast<int>(std::max<int64_t>(std::min({groups, count, wanted}), 1));
}

inline Numbers order_of(const NormStridedRows& rows) {
  return {
      {"groups", rows.groups}, {"blocks", rows.blocks}, {"share", rows.share}, {"team", rows.team}};
}

// Elements of a row in each of its blocks: whole accesses.
template <typename Shape, typename T>
int64_t share_of_block(const NormSharing& rows) {
  constexpr int kElements = Shape::template kElements<T>;
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  return quotient(quotient(rows.n, rows.blocks), kElements) * kElements;
}
// Blocks that have a share of a row.
inline int blocks_of_shares(const NormSharing& rows) {
  return static_cast<int>((rows.n + rows.share - 1) / rows.share);
}

// The order of a group's sums, in whole accesses: of wide units, or of others.
template <typename T>
NormSumOrder order_of_sums(int64_t n, bool is_wide) {
  constexpr int kSums = kAccessBytes / static_cast<int>(sizeof(compute_t<T>));
  constexpr int kPlanes = static_cast<int>(sizeof(compute_t<T>) / sizeof(T));
  return {(n + kSums - 1) / kSums * kSums, is_wide ? kPlanes : 1};
}

// Without sums: as many groups as can be resident. A block, or a cluster, walks each.
inline void count_groups(Planner& planner, NormSharing& rows) {
  if (rows.groups != 0) return;
  const int64_t blocks =
      planner.tuned(rows.blocks <= 2 ? Tunable::kNormBackwardGroupsWithoutSums
                                     : Tunable::kNormBackwardClusteredGroupsWithoutSums);
  const int64_t groups = std::max<int64_t>(blocks / rows.blocks, 1);
  rows.groups = static_cast<int>(std::min(groups, rows.count));
}

inline Launch launch_of_groups(const NormSharing& rows, int threads) {
  Launch how{static_cast<unsigned>(rows.groups * rows.blocks), static_cast<unsigned>(threads)};
  how.cluster_blocks = static_cast<unsigned>(rows.spans_grid ? 1 : rows.blocks);
  how.is_cooperative = rows.spans_grid;
  return how;
}

// How a shape shares out rows, and at which cost.
struct NormFit {
  NormStridedRows rows;
  Launch how;
  int64_t cost;  // the predicted time, in cycles of an SM
};

// Nothing if a row does not fit into `blocks` blocks with at least `least_stages` stages, or with
// as many as a group has rows.
template <typename Shape, typename T>
std::optional<NormFit> share_out_norm(Planner& planner, NormStridedRows rows, int blocks,
                                      int least_stages) {
  constexpr int kColumns = Shape::template kColumns<T>;
  constexpr int64_t kMost = kNormResidentThreads * kColumns;  // elements that a block can hold
  constexpr int kWarpColumns = kWarpLanes * kColumns;
  rows.blocks = blocks;
  rows.share = share_of_block<Shape, T>(rows);
  if (rows.share > kMost) return {};
  if (rows.spans_grid && rows.share * static_cast<int64_t>(sizeof(T)) < kNormLineBytes) return {};
  if (rows.spans_grid) rows.blocks = blocks = blocks_of_shares(rows);
  count_groups(planner, rows);
  rows.team = kWarpLanes * static_cast<int>((rows.share + kWarpColumns - 1) / kWarpColumns);
  // Only a team of a block without a cluster is below a warp.
  while (Shape::kHasLanes && !rows.spans_cluster() && rows.team <= kWarpLanes &&
         rows.team / 2 * kColumns >= rows.share) {
    rows.team /= 2;
  }
  // As many teams as rows, threads, and room for enough stages allow. A cluster's blocks have one.
  constexpr int kWeightParts = sizeof(compute_t<T>) / sizeof(T);
  const auto wanted = static_cast<int>(planner.tuned(Tunable::kNormBackwardThreads));
  const int most_threads = std::min(kNormResidentThreads, std::max(wanted, rows.team));
  // Where sums must not depend on the GPU, those of an H200.
  const bool is_invariant = planner.tuned(Tunable::kRowsPlannedRows) > 0;
  const int multiprocessors = is_invariant ? 132 : std::max(planner.device.multiprocessors(), 1);
  const int beside =
      std::clamp(rows.groups * blocks / multiprocessors, 1, kNormResidentThreads / most_threads);
  const int room = planner.device.shared_bytes() / beside - kNormOtherBytes;
  // Bytes of a warp.
  const int weights = kWeightParts * kWarpLanes * Shape::kPartBytes;
  const int lines = Shape::kIsWide ? 0 : std::max(kWarpLanes / rows.team, 1);
  rows.pitch = kWarpLanes * Shape::kAccesses + lines * kNormLineBytes / kAccessBytes;
  const int stage = rows.arrays * rows.pitch * kAccessBytes;
  const int64_t each = (rows.count + rows.groups - 1) / rows.groups;
  if (each < least_stages) least_stages = static_cast<int>(each);
  const int most_warps = room / (weights + least_stages * stage);
  const int threads = std::min(most_threads, most_warps * kWarpLanes);
  const auto teams =
      static_cast<int>(std::min<int64_t>(threads / rows.team, rows.spans_cluster() ? 1 : each));
  if (teams < 1) return {};
  const int warps = (teams * rows.team + kWarpLanes - 1) / kWarpLanes;
  rows.teams = warps * kWarpLanes / rows.team;
  rows.prepare();
  NormFit fit{rows, launch_of_groups(rows, warps * kWarpLanes)};
  const auto stages = static_cast<int>(planner.tuned(Tunable::kNormBackwardStages));
  fit.rows.stages = std::min((room / warps - weights) / stage, stages);
  if (fit.rows.stages < least_stages) return {};
  fit.how.shared_bytes = static_cast<std::size_t>(warps * (weights + fit.rows.stages * stage));
  const int64_t at_once = warps * kWarpLanes / rows.team;
  const int64_t bytes = (rows.arrays + 1) * rows.count * rows.n * static_cast<int64_t>(sizeof(T));
  fit.cost = predict_cycles(multiprocessors, planner.device.shared_bytes(),
                            {kColumns, Shape::kIsWide, (each + at_once - 1) / at_once,
                             int64_t{rows.groups} * blocks, rows.spans_grid ? 1 : blocks, warps,
                             rows.spans_grid, static_cast<int64_t>(fit.how.shared_bytes), bytes});
  return fit;
}

// Room for a grid's barrier and for what its blocks send each other: two states of each team. It is
// a call's, since compiled graphs have no scratch of a stream.
template <typename State>
Address<char> need_mail(Planner& planner, const NormFit& fit) {
  const int64_t teams = fit.how.threads() / static_cast<unsigned>(fit.rows.team);
  const int64_t states = 2 * teams * fit.rows.blocks * static_cast<int64_t>(sizeof(State));
  return planner.need({kBarrierBytes + states, kBarrierBytes});
}

// Shares out two-pass rows: `blocks` per row, `fields` sums.
template <typename Shape, typename T>
Launch share_out_streaming_norm(Planner& planner, NormStridedRows& rows, int blocks, int fields) {
  rows.blocks = blocks;
  rows.share = share_of_block<Shape, T>(rows);
  rows.team = kNormThreads;
  const int64_t field_bytes = rows.share * static_cast<int64_t>(sizeof(compute_t<T>));
  const int room = planner.device.shared_bytes() - kNormOtherBytes;
  rows.smem_fields = static_cast<int>(std::min<int64_t>(room / field_bytes, fields));
  count_groups(planner, rows);
  rows.teams = 1;
  rows.prepare();
  Launch how = launch_of_groups(rows, kNormThreads);
  how.shared_bytes = static_cast<std::size_t>(rows.smem_fields * field_bytes);
  return how;
}

}  // namespace diglot
