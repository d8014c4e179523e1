// Derivatives of norms of resident rows: a team of threads, or a cluster, holds a row. Twin of
// triton_ops/lib/norm/backward_resident.py.
//
// The next rows are on their way to shared memory while a row's sums are found, so that memory is
// never idle. A thread that holds its part of a row in registers starts the copy of a later row
// into the same stage at once; others start it when they are done with the row.
#pragma once

#include "diglot/norm/backward_part.cuh"
#include "diglot/norm/team_sum.cuh"
#include "diglot/sync/pdl.cuh"

namespace diglot {

template <typename Shape, typename T, bool kIsCentered>
DIGLOT_DEVICE void norm_backward_resident(const NormRows& rows, const NormGradients<T>& arrays) {
  using Compute = compute_t<T>;
  using RowSums = NormSums<Compute, kIsCentered>;
  using Part = NormPart<Shape, T, kIsCentered>;
  Part part(rows, arrays);
  part.clear();
  const int step = part.step();
  int64_t row = part.first_row() + part.team_number();
  for (int stage = 0; stage < rows.stages; ++stage) {
    part.template load_async<0, Part::kReadArrays>(row + stage * step, stage);
    group_copies();
  }
  auto next = part.statistics(row);
  part.stage_weights();
  TeamSum<RowSums> team_sum(rows);
  launch_dependents();

  const Compute share = Compute(1) / static_cast<Compute>(rows.n);
  int stage = 0;
  DIGLOT_NO_UNROLL
  for (; row - part.team_number() < rows.count;
       row += step) {  // equally often for all teams of a block
    const auto statistics = next.ready();
    next = part.statistics(row + step);
    wait_for_copies_before(rows.stages - 1);
    const int64_t later = row + rows.stages * step;
    typename Part::Held held;
    RowSums sums = RowSums::none();
    if (row < rows.count) sums = part.reduce(statistics, held, stage, later);
    sums = team_sum(sums);
    if (row < rows.count) part.store(row, statistics.map(sums, share), held, stage, later);
    group_copies();
    stage = stage + 1 == rows.stages ? 0 : stage + 1;
  }
  part.finish();
  if (rows.blocks > 1)
    cluster_sync();  // in the interpreter others may still read this block's mail
}

}  // namespace diglot
