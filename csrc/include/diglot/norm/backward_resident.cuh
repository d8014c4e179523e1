// Derivatives of norms of resident rows: a team of threads, a cluster or the whole grid holds a
// row. Twin of triton_ops/lib/norm/backward_resident.py.
//
// The next rows are on their way to shared memory while a block finds a row's sums, so that memory
// is never idle.
#pragma once

#include "diglot/norm/backward_part.cuh"
#include "diglot/norm/team_sum.cuh"
#include "diglot/sync/pdl.cuh"

namespace diglot {

template <typename Shape, typename T, bool kIsCentered>
DIGLOT_DEVICE void norm_backward_resident(const NormRowsOf<Shape>& rows,
                                          const NormGradients<T>& arrays) {
  using Compute = compute_t<T>;
  using RowSums = NormSums<Compute, kIsCentered>;
  using Part = NormPart<Shape, T, kIsCentered>;
  Part part(rows, arrays);
  const int step = part.step();
  const int64_t first = part.first_row();
  int64_t row = first + part.team_number() * int64_t{rows.groups};
  // Weights and statistics come first. Later they would wait behind the rows.
  auto next = part.statistics(row);
  part.load_weights_async();
  group_copies();
  for (int stage = 0; stage < rows.stages; ++stage) {
    part.load_async(row + stage * step, stage);
    part.load_addends_async(row + stage * step, stage);
    group_copies();
  }
  part.clear();
  TeamSum<RowSums> team_sum(rows, arrays.barrier, arrays.mail);
  launch_dependents();
  wait_for_copies_before(rows.stages);
  part.convert_weights();

  int stage = 0;
  DIGLOT_NO_UNROLL
  for (int64_t common = first; common < rows.count;
       common += step) {  // equally often for all teams
    const auto statistics = next.ready();
    next = part.statistics(row + step);
    wait_for_copies_before(rows.stages - 1);
    part.meet_lanes();
    RowSums sums = RowSums::none();
    if (row < rows.count) sums = part.reduce(row, statistics, stage);
    const int64_t later = row + rows.stages * step;
    if (Part::kHolds) {
      part.meet_lanes();
      part.load_async(later, stage);
    }
    sums = team_sum(sums);
    part.store(row, statistics.map(sums, arrays.share), stage);
    part.meet_lanes();
    if (!Part::kHolds) part.load_async(later, stage);
    part.load_addends_async(later, stage);
    group_copies();
    stage = stage + 1 == rows.stages ? 0 : stage + 1;
    row += step;
  }
  part.finish();
  if (rows.spans_cluster())
    cluster_sync();  // in the interpreter others may still read this block's mail
}

}  // namespace diglot
