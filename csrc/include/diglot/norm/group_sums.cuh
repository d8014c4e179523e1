// Sums over groups of rows: the second launch of norms' derivatives. Twin of
// triton_ops/lib/norm/group_sums.py.
#pragma once

#include "diglot/norm/backward.cuh"
#include "diglot/sync/pdl.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// The threads of a block: some side by side, an access each, and the rest below them, for other
// groups. Both numbers are powers of two.
constexpr int kNormSumThreads = 256;
constexpr int kNormSumLoads = 8;  // in flight for each thread

// Where the sums for weight and bias go. Null: not requested.
struct NormSumOutputs {
  void* field[2];
};

// output = the sum over groups, in order. blockIdx.y is the number of the field. A group has whole
// accesses; the last one may reach behind the last column.
template <int kElements, typename Compute>
DIGLOT_DEVICE void norm_group_sums(int64_t n, int groups, int side, const NormSumOrder& order,
                                   const Compute* sums, const NormSumOutputs& outputs,
                                   DType dtype) {
  using Access = Vector<Compute, kElements>;
  __shared__ Access shared[kNormSumThreads];
  grid_dependency_wait();
  const int thread = static_cast<int>(threadIdx.x), groups_at_once = kNormSumThreads / side;
  const int64_t first = (int64_t{blockIdx.x} * side + thread % side) * kElements;
  Access total = {};
  if (first < order.pitch) {
    const Compute* const from = sums + int64_t{blockIdx.y} * groups * order.pitch + first;
    for (int group = thread / side; group < groups; group += groups_at_once * kNormSumLoads) {
      Access loaded[kNormSumLoads];
      DIGLOT_UNROLL
      for (int load = 0; load < kNormSumLoads; ++load) {
        const int number = group + load * groups_at_once;
        loaded[load] = Access{};
        if (number >= groups) continue;
        loaded[load] = load_vector<Compute, kElements>(from + number * order.pitch);
      }
      DIGLOT_UNROLL
      for (int load = 0; load < kNormSumLoads; ++load) {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) total[i] += loaded[load][i];
      }
    }
  }
  shared[thread] = total;
  __syncthreads();
  for (int half = kNormSumThreads / 2; half >= side; half /= 2) {
    if (thread < half) {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) shared[thread][i] += shared[thread + half][i];
    }
    __syncthreads();
  }
  void* const output = blockIdx.y == 0 ? outputs.field[0] : outputs.field[1];
  if (thread < side && first < order.pitch) {
    const int64_t column = order.column(first, kElements);
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (column + i < n) store_as(output, column + i, dtype, shared[thread][i]);
    }
  }
}

}  // namespace diglot
