// Split columns: columns too tall for a cluster take two launches over chunks of them. The first
// reduces each chunk. The second combines the chunks' states and maps. Twin of
// triton_ops/lib/rows/split_columns.py.
//
// A cluster would hold a narrow strip of such columns: pieces of memory far apart, at half the
// speed of whole lines. Here blocks stream strips of 512 bytes. The second launch goes in reverse
// order, because the L2 cache still has what the first read last.
#pragma once

#include "diglot/reduce/columns.cuh"
#include "diglot/rows/tiled.cuh"
#include "diglot/sync/pdl.cuh"

namespace diglot {

// A block's strip of columns, and its chunk. Blocks of neighbouring numbers have strips side by
// side.
struct ColumnChunk {
  int64_t strip;
  int number;

  template <int kArrays>
  DIGLOT_DEVICE ColumnChunk(const Rows<kArrays>& rows, unsigned block) {
    const unsigned strips = gridDim.x / static_cast<unsigned>(rows.chunks);
    strip = block % strips, number = static_cast<int>(block / strips);
  }
};

// The first launch: states[chunk][column] of all columns.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays>
DIGLOT_DEVICE void reduce_column_chunks(const Rows<kArrays>& rows, const Operation& operation,
                                        const Inputs<I, kInputs>& inputs,
                                        typename Operation::State* states) {
  using State = typename Operation::State;
  using Tile = RowTile<Shape, Operation, I, kInputs, kArrays>;
  constexpr int kRows = Tile::kRows;
  launch_dependents();
  const ColumnChunk chunk(rows, blockIdx.x);
  Tile tile(rows, RowPlace<Shape>(rows, chunk.strip), inputs);
  const auto operations = tile.operations_for_rows(operation);
  auto thread_states = tile.none();
  const int first = chunk.number * rows.tiles;
  DIGLOT_NO_UNROLL
  for (int t = first; t < first + rows.tiles; ++t) {
    const auto range = tile.range(t);
    tile.load(range);
    thread_states = combine(thread_states, tile.reduce(operations, range));
  }
  __shared__ State shared[kRows * Shape::kThreads];
  const int64_t access = chunk.strip << rows.log_side;
  State* const chunk_states = states + chunk.number * rows.count * kRows;
  block_columns_reduce<Shape::kThreads>(
      thread_states, shared, rows.log_side, [&](int place, const State& state) {
        const int row = place >> rows.log_side, column = place & ((1 << rows.log_side) - 1);
        if (access + column < rows.count) chunk_states[(access + column) * kRows + row] = state;
      });
}

// Every thread gets the states of its columns, combined from all chunks. The block has `width` of
// the `columns` columns side by side, from `first` on.
template <int kThreads, typename State, int kRows>
DIGLOT_DEVICE PerRow<State, kRows> combine_chunks(const State* states, int chunks, int64_t columns,
                                                  int64_t first, int width,
                                                  State (&shared)[kRows * kThreads]) {
  constexpr int kLoads = 8;  // in flight for each thread
  const int thread = static_cast<int>(threadIdx.x);
  const int side = width < kThreads ? width : kThreads, groups = kThreads / side;
  const int group = thread / side;
  for (int column = thread % side; column < width; column += side) {
    State state = State::none();
    const State* const from = states + first + column;
    const int count = first + column < columns ? chunks : 0;
    for (int chunk = group; chunk < count; chunk += groups * kLoads) {
      State loaded[kLoads];
      DIGLOT_UNROLL
      for (int load = 0; load < kLoads; ++load) {
        const int number = chunk + load * groups;
        loaded[load] = number < chunks ? from[number * columns] : State::none();
      }
      DIGLOT_UNROLL
      for (int load = 0; load < kLoads; ++load) state = combine(state, loaded[load]);
    }
    shared[group * width + column] = state;
  }
  __syncthreads();
  for (int column = thread; groups > 1 && column < width; column += kThreads) {
    State state = shared[column];
    for (int other = 1; other < groups; ++other) {
      state = combine(state, shared[other * width + column]);
    }
    shared[column] = state;
  }
  __syncthreads();
  PerRow<State, kRows> result;
  const int column = thread & (width / kRows - 1);
  DIGLOT_UNROLL
  for (int row = 0; row < kRows; ++row) result.values[row] = shared[column * kRows + row];
  return result;
}

// The second launch, from the last chunk to the first, and from the last tile of each.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void map_column_chunks(const Rows<kArrays>& rows, const Operation& operation,
                                     const Inputs<I, kInputs>& inputs, O* output,
                                     const typename Operation::State* states) {
  using State = typename Operation::State;
  using Tile = RowTile<Shape, Operation, I, kInputs, kArrays>;
  constexpr int kRows = Tile::kRows;
  const ColumnChunk chunk(rows, gridDim.x - 1 - blockIdx.x);
  Tile tile(rows, RowPlace<Shape>(rows, chunk.strip), inputs);
  const int first = chunk.number * rows.tiles;
  const int last = first + rows.tiles - 1;
  tile.prefetch_l2(tile.range(last));
  grid_dependency_wait();
  __shared__ State shared[kRows * Shape::kThreads];
  const auto totals = combine_chunks<Shape::kThreads, State, kRows>(
      states, rows.chunks, rows.count * kRows, (chunk.strip << rows.log_side) * kRows,
      kRows << rows.log_side, shared);
  const auto maps = maps_of_rows(tile.operations_for_rows(operation), totals,
                                 std::make_integer_sequence<int, kRows>{});
  DIGLOT_NO_UNROLL
  for (int t = last; t >= first; --t) {
    const auto range = tile.range(t);
    tile.load(range);
    tile.store(operation, maps, range, output);
  }
}

}  // namespace diglot
