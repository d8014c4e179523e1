// Rows of arrays, each reduced to one state and then mapped by it: softmax, norms and their kin,
// forward and backward. Twin of triton_ops/lib/rows/rows.py.
//
// operation.cuh says what a kernel writes; place.cuh how rows are shared out; tile.cuh and
// tile_loads.cuh what a thread holds of a row. The kernel's shape chooses how it goes through rows:
//
//   resident.cuh       a team holds a row in registers: lanes, a block or a cluster
//   tiled.cuh          longer rows: in registers, in shared memory, the rest read twice
//   split_columns.cuh  tall columns: two launches over chunks of them
//
// A row is read once wherever a block or a cluster can hold it. A long row goes to shared memory by
// asynchronous copies, past the registers, so that all of it is in flight at once.
//
// A row lies along any dimension of a strided array. Where its elements are neighbours,
// neighbouring threads access them. Where neighbouring rows' elements are neighbours, a block takes
// several rows side by side, as columns. Nothing is transposed or copied.
#pragma once

#include "diglot/rows/resident.cuh"
#include "diglot/rows/split_columns.cuh"
#include "diglot/rows/tiled.cuh"

namespace diglot {

// output = operation.map(total)(inputs...) row by row, where `total` is the state of the whole row.
// Every thread calls it. `states`, for split columns, has room for the states of all chunks of all
// columns.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void reduce_then_map_rows(const Rows<kArrays>& rows, const Operation& operation,
                                        const Inputs<I, kInputs>& inputs, O* output,
                                        [[maybe_unused]]
                                        typename Operation::State* states = nullptr) {
  check_operation<Operation, kInputs>();
  if constexpr (Shape::kWalk == Walk::kResident) {
    map_resident_rows<Shape>(rows, operation, inputs, output);
  } else if constexpr (Shape::kWalk == Walk::kTiled) {
    map_tiled_rows<Shape>(rows, operation, inputs, output);
  } else if constexpr (Shape::kWalk == Walk::kReduceChunks) {
    constexpr int kReduced = kReducedInputs<Operation, kInputs>;
    Inputs<I, kReduced> reduced;
    DIGLOT_UNROLL
    for (int k = 0; k < kReduced; ++k) reduced.arrays[k] = inputs.arrays[k];
    reduce_column_chunks<Shape>(rows, operation, reduced, states);
  } else {
    map_column_chunks<Shape>(rows, operation, inputs, output, states);
  }
}

}  // namespace diglot
