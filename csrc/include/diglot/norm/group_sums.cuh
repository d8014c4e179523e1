// Sums over groups of rows: the second launch of norms' derivatives. Twin of
// triton_ops/lib/norm/group_sums.py.
#pragma once

#include "diglot/norm/backward.cuh"
#include "diglot/reduce/warp_block.cuh"
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
  const int thread = static_cast<int>(threadIdx.x), bits = __ffs(side) - 1;
  const int part = thread >> bits, parts = kNormSumThreads >> bits;
  const int64_t first = ((int64_t{blockIdx.x} << bits) + (thread & (side - 1))) * kElements;
  const int64_t step = parts * order.pitch;
  const Compute* from = sums + (int64_t{blockIdx.y} * groups + part) * order.pitch + first;
  const auto add = [](Access& to, const Access& added) {
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) to[i] += added[i];
  };
  Access total = {};
  grid_dependency_wait();
  if (first < order.pitch) {
    DIGLOT_NO_UNROLL
    for (int group = part; group < groups; group += parts * kNormSumLoads) {
      Access loaded[kNormSumLoads];
      DIGLOT_UNROLL
      for (int load = 0; load < kNormSumLoads; ++load) {
        loaded[load] = Access{};
        if (group + load * parts < groups) loaded[load] = load_vector<Compute, kElements>(from);
        from += step;
      }
      DIGLOT_UNROLL
      for (int load = 0; load < kNormSumLoads; ++load) add(total, loaded[load]);
    }
  }
  // Halves of the block are added up again and again: first whole warps, by those of the first
  // `width` threads, then lanes.
  const int width = side < kWarpLanes ? kWarpLanes : side;
  if (width < kNormSumThreads) {
    constexpr int kMost = kNormSumThreads / kWarpLanes;
    shared[thread] = total;
    __syncthreads();
    if (thread >= width) return;
    Access others[kMost];
    DIGLOT_UNROLL
    for (int k = 0; k < kMost; ++k) {
      others[k] = k * width < kNormSumThreads ? shared[k * width + thread] : Access{};
    }
    DIGLOT_UNROLL
    for (int half = kMost / 2; half > 0; half /= 2) {
      if (half * width >= kNormSumThreads) continue;
      DIGLOT_UNROLL
      for (int k = 0; k < half; ++k) add(others[k], others[k + half]);
    }
    total = others[0];
    DIGLOT_NO_UNROLL
    for (int distance = kWarpLanes / 2; distance >= side; distance /= 2) {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        total[i] += __shfl_xor_sync(kAllLanes, total[i], distance);
      }
    }
  }
  if (thread >= side || first >= order.pitch) return;
  const int64_t column = order.column(first, kElements);
  const auto store = [&](auto* output) {
    using Output = std::decay_t<decltype(*output)>;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (column + i < n) output[column + i] = convert<Output>(total[i]);
    }
  };
  void* const output = blockIdx.y == 0 ? outputs.field[0] : outputs.field[1];
  switch (dtype) {
    case DType::kFloat16: store(static_cast<float16*>(output)); break;
    case DType::kBFloat16: store(static_cast<bfloat16*>(output)); break;
    case DType::kFloat32: store(static_cast<float*>(output)); break;
    default: store(static_cast<double*>(output));
  }
}

}  // namespace diglot
