// Resident rows: a team holds a row in registers. The team is lanes, a block or a cluster. Twin of
// triton_ops/lib/rows/resident.py.
#pragma once

#include "diglot/reduce/cluster.cuh"
#include "diglot/rows/tile.cuh"

namespace diglot {

// output = operation.map(total)(inputs...).
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void map_resident_rows(const Rows<kArrays>& rows, const Operation& operation,
                                     const Inputs<I, kInputs>& inputs, O* output) {
  constexpr bool kIsCluster = Shape::kTeam == Team::kCluster;
  using State = typename Operation::State;
  using Tile = RowTile<Shape, Operation, I, kInputs, kArrays>;
  const RowPlace<Shape> place(rows);
  Tile tile(rows, place, inputs);
  const auto range = tile.range(place.block);
  tile.load(range);
  tile.load_params(operation, range);
  RowMailbox<State> mailbox(kIsCluster ? rows.blocks : 1);
  if constexpr (kIsCluster) mailbox.begin();

  if constexpr (Operation::kJoins) tile.store_joined(range, operation.joined);
  if constexpr (Operation::kReplaces) {
    typename Tile::Values values;
    const State part = tile.reduce_replacing(operation, range, values);
    State total = tile.combine_in_team(part);
    if constexpr (kIsCluster) total = mailbox.combine_with_others(total, place.block);
    tile.store_replaced(operation, part, total, values, range, output);
  } else {
    State total;
    if constexpr (Operation::kReducesTogether) {
      total = tile.combine_together(operation, tile.reduce_together(operation, range), range);
    } else {
      total = tile.combine_in_team(tile.reduce({{operation}}, range).values[0]);
    }
    if constexpr (kIsCluster) total = mailbox.combine_with_others(total, place.block);
    tile.store(operation, tile.map(operation, total), range, output);
  }
}

}  // namespace diglot
