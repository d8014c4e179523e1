// Persistent blocks: clusters loop over rows. While a cluster computes one row from registers, its
// next row arrives in shared memory.
#pragma once

#include "diglot/reduce/cluster.cuh"
#include "diglot/rows/tile.cuh"

namespace diglot {

// output = operation.map(total)(inputs...).
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void map_persistent_rows(const Rows<kArrays>& rows, const Operation& operation,
                                       const Inputs<I, kInputs>& inputs, O* output) {
  static_assert(Shape::kTeam == Team::kCluster);
  using State = typename Operation::State;
  using Tile = RowTile<Shape, Operation, I, kInputs, kArrays>;
  const int64_t clusters = gridDim.x >> rows.log_blocks;
  RowPlace<Shape> place(rows);
  Tile tile(rows, place, inputs);
  tile.load_async(tile.range(place.block), 0);
  const auto params =
      tile.stage_params(operation, tile.range(place.block), Shape::template kTileBytes<I, kInputs>);
  RowMailbox<State> mailbox(rows.blocks());
  mailbox.begin();
  for (unsigned number = 0; place.row < rows.count; ++number) {
    wait_for_copies();
    const auto range = tile.range(place.block);
    tile.load_staged(range, 0);
    const auto current = tile;
    place.row += clusters;
    if (place.row < rows.count) {
      tile.move_to(place, inputs);
      tile.load_async(tile.range(place.block), 0);
    }
    if constexpr (Operation::kJoins) current.store_joined(range, operation.joined);
    const State total =
        mailbox.combine_with_others(current.reduce_in_team(operation, range), place.block, number);
    current.store_mapped(operation, total, params, range, output);
  }
}

}  // namespace diglot
