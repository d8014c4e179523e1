// Tiled rows: a row, or side-by-side columns, has several tiles for each block that shares it.
// Twin of triton_ops/lib/rows/tiled.py.
#pragma once

#include "diglot/reduce/cluster.cuh"
#include "diglot/reduce/columns.cuh"
#include "diglot/rows/tile.cuh"

namespace diglot {

// The map of each row.
template <typename Operations, typename States, int... kRow>
DIGLOT_DEVICE auto maps_of_rows(const Operations& operations, const States& states,
                                std::integer_sequence<int, kRow...>) {
  using Map = decltype(operations.values[0].map(states.values[0]));
  return PerRow<Map, sizeof...(kRow)>{{operations.values[kRow].map(states.values[kRow])...}};
}

// output = operation.map(total)(inputs...). A block keeps the first tile of its part of a row in
// registers and the next ones in shared memory. It reads all later tiles twice.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void map_tiled_rows(const Rows<kArrays>& rows, const Operation& operation,
                                  const Inputs<I, kInputs>& inputs, O* output) {
  using State = typename Operation::State;
  using Tile = RowTile<Shape, Operation, I, kInputs, kArrays>;
  const auto numbers = std::make_integer_sequence<int, Tile::kRows>{};
  const RowPlace<Shape> place(rows);
  Tile tile(rows, place, inputs);
  const auto operations = tile.operations_for_rows(operation);
  const int tiles = rows.tiles, held_tiles = 1 + rows.slots;
  const int first = place.block * tiles;
  const auto load = [&](int t) {
    const auto range = tile.range(first + t);
    if (t > 0 && t < held_tiles) {
      tile.load_staged(range, t - 1);
    } else {
      tile.load(range);
    }
    return range;
  };

  for (int t = 1; t < held_tiles; ++t) tile.load_async(tile.range(first + t), t - 1);
  if (held_tiles > 1) tile.prefetch_l2(tile.range(first));
  for (int t = 0; t < tiles; ++t) tile.prefetch_params(operation, tile.range(first + t));
  auto states = tile.none();
  for (int t = tiles - 1; t >= 0; --t) {
    if (t > 0 && t == held_tiles - 1) wait_for_copies();
    const auto range = load(t);
    if constexpr (Operation::kJoins) tile.store_joined(range, operation.joined);
    const auto tile_states = tile.reduce(operations, range);
    states = tiles > 1 ? combine(states, tile_states) : tile_states;
  }

  const int blocks = rows.blocks;
  if constexpr (Shape::kTeam == Team::kColumns) {
    __shared__ State shared[Tile::kRows * Shape::kThreads];
    columns_reduce<Shape::kThreads>(states, shared, rows.log_side, blocks);
  } else {
    __shared__ State shared;
    states.values[0] = block_reduce<Shape::kThreads>(states.values[0]);
    if (blocks > 1) states.values[0] = cluster_reduce(states.values[0], &shared, blocks);
  }

  const auto maps = maps_of_rows(operations, states, numbers);
  DIGLOT_NO_UNROLL
  for (int t = 0; t < tiles; ++t) {
    const auto range = t == 0 ? tile.range(first) : load(t);
    tile.store(operation, maps, range, output);
  }
  if (blocks > 1) cluster_wait();
}

}  // namespace diglot
