// Reductions of side-by-side columns: across a block's threads and, through distributed shared
// memory (DSMEM), across the blocks of a cluster.
#pragma once

#include "diglot/reduce/warp_block.cuh"
#include "diglot/sync/cluster.cuh"

namespace diglot {

// Combines the states of side-by-side columns across a block's threads. For each column one thread
// calls take(place, state). The states of access `column` are at the places row * side + column.
// `shared` has room for the states of all threads.
template <int kThreads, typename State, int kRows, typename Take>
DIGLOT_DEVICE void block_columns_reduce(PerRow<State, kRows> states,
                                        State (&shared)[kRows * kThreads], int log_side,
                                        Take take) {
  const int side = 1 << log_side, thread = static_cast<int>(threadIdx.x);
  for (int distance = kWarpLanes / 2; distance >= side; distance /= 2) {
    DIGLOT_UNROLL
    for (int row = 0; row < kRows; ++row) {
      states.values[row] = combine(states.values[row], shuffle_down(states.values[row], distance));
    }
  }
  // The first threads of each group write. A group is a warp, or one turn of the columns if that is
  // longer.
  const int turn = side < kWarpLanes ? kWarpLanes : side, column = thread & (side - 1);
  const int group = thread / turn, groups = kThreads / turn, columns = side * kRows;
  if (thread % turn < side) {
    DIGLOT_UNROLL
    for (int row = 0; row < kRows; ++row) {
      shared[group * columns + row * side + column] = states.values[row];
    }
  }
  __syncthreads();
  for (int place = thread; place < columns; place += kThreads) {
    State state = shared[place];
    for (int other = 1; other < groups; ++other) {
      state = combine(state, shared[other * columns + place]);
    }
    take(place, state);
  }
}

// Every thread gets the combined states of its rows, which are side-by-side columns, across all
// blocks that share them. In each block one thread combines a column. No block may end before all
// have arrived at the cluster's barrier once more.
template <int kThreads, typename State, int kRows>
DIGLOT_DEVICE void columns_reduce(PerRow<State, kRows>& states, State (&shared)[kRows * kThreads],
                                  int log_side, int blocks) {
  const int side = 1 << log_side, thread = static_cast<int>(threadIdx.x);
  if (side == kThreads) return;  // each thread has columns that no other shares
  block_columns_reduce<kThreads>(states, shared, log_side,
                                 [&](int place, const State& state) { shared[place] = state; });
  const int columns = side * kRows;
  State* totals = shared;
  if (blocks > 1) {
    cluster_sync();
    totals += columns;  // others still read the previous part
    for (int place = thread; place < columns; place += kThreads) {
      State state = *dsmem(shared + place, 0);
      for (int block = 1; block < blocks; ++block) {
        state = combine(state, *dsmem(shared + place, block));
      }
      totals[place] = state;
    }
    cluster_arrive();
  }
  __syncthreads();
  DIGLOT_UNROLL
  for (int row = 0; row < kRows; ++row) {
    states.values[row] = totals[row * side + (thread & (side - 1))];
  }
}

}  // namespace diglot
