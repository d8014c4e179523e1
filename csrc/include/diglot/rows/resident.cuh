// Resident rows: a team holds a row in registers. The team is lanes, a block or a cluster. Twin of
// triton_ops/lib/rows/resident.py.
//
// Persistent clusters loop over rows. While they compute one from registers, the next one arrives
// in shared memory.
#pragma once

#include "diglot/reduce/cluster.cuh"
#include "diglot/rows/tile.cuh"

namespace diglot {

// output = operation.map(total)(inputs...).
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void map_resident_rows(const Rows<kArrays>& rows, const Operation& operation,
                                     const Inputs<I, kInputs>& inputs, O* output) {
  constexpr bool kIsCluster = Shape::kTeam == Team::kCluster;
  constexpr bool kLoops = Shape::kWalk == Walk::kPersistent;
  using State = typename Operation::State;
  using Tile = RowTile<Shape, Operation, I, kInputs, kArrays>;
  RowPlace<Shape> place(rows);
  Tile tile(rows, place, inputs);
  auto range = tile.range(place.block);
  tile.load(range);
  const int thread_bytes = kLoops ? Shape::template kThreadBytes<I, kInputs> : 0;
  const auto params =
      tile.stage_params(operation, range, static_cast<int>(blockDim.x) * thread_bytes);
  RowMailbox<State> mailbox(kIsCluster ? rows.blocks : 1);
  if constexpr (kIsCluster) mailbox.begin();

  for (unsigned number = 0;; ++number) {
    bool has_next = false;
    if constexpr (kLoops) {
      place.move_on(rows);
      has_next = place.row < rows.count;
      const Tile next(rows, place, inputs);
      if (has_next) next.load_async(next.range(place.block), 0);
    }
    if constexpr (Operation::kJoins) tile.store_joined(range, operation.joined);
    if constexpr (Operation::kReplaces) {
      typename Tile::Replaced replaced;
      const State thread_state = tile.reduce_replacing(operation, range, replaced);
      State total = tile.combine_in_team(thread_state);
      if constexpr (kIsCluster) total = mailbox.combine_with_others(total, place.block, number);
      tile.store_replaced(operation.map_replaced(thread_state, total), replaced, range, output);
    } else {
      State total = tile.reduce_in_team(operation, range);
      if constexpr (kIsCluster) total = mailbox.combine_with_others(total, place.block, number);
      if (number == 0) tile.wait_for_params();
      tile.store_mapped(operation, total, params, range, output);
    }
    if (!has_next) return;
    wait_for_copies();
    tile.move_to(place, inputs);
    range = tile.range(place.block);
    tile.load_staged(range, 0);
  }
}

}  // namespace diglot
