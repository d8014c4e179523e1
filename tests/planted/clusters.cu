// Kernels of clusters whose blocks begin and end at different times, of a grid of them that waits,
// and one of many atomic operations. For tests/test_interpreted_clusters.py and
// tests/test_interpreted_forks.py.
#include "diglot/sync/cluster.cuh"
#include "diglot/sync/grid_barrier.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kThreads = 32;
constexpr int kBlocks = 8;  // of a cluster

// out[block] = the sum of the next block's values, added by its threads one after the other.
template <bool kWaits>
__global__ void sum_of_next(const float* in, float* out) {
  __shared__ float values[kThreads];
  const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(blockIdx.x) % kBlocks;
  values[thread] = in[blockIdx.x * kThreads + thread];
  if (kWaits) cluster_sync();
  if (thread == 0) {
    const float* const next = dsmem(values, (rank + 1) % kBlocks);
    float sum = 0;
    for (int i = 0; i < kThreads; ++i) sum += next[i];
    out[blockIdx.x] = sum;
  }
  cluster_sync();
}

// Most threads arrive and end. The last block's first thread, for which all must wait, is late.
__global__ void arrive_and_end(const float* in, float* out) {
  __shared__ float value;
  const bool is_first = threadIdx.x == 0, is_last_block = blockIdx.x % kBlocks == kBlocks - 1;
  if (is_last_block && is_first) {
    for (int i = 0; i < 8; ++i) __syncwarp(1);
    value = in[blockIdx.x * kThreads];
  }
  cluster_arrive();
  if (!is_first) return;
  cluster_wait();
  out[blockIdx.x] = *dsmem(&value, kBlocks - 1);
  cluster_sync();
}

__device__ uint32_t barrier_word = 0;  // never reset
__device__ float sums[64];

// out[block] = the sum of the whole grid: of clusters by distributed shared memory, of those by a
// barrier of the grid.
__global__ void sum_in_grid(const float* in, float* out) {
  __shared__ float value;
  GridBarrier barrier(&barrier_word);
  const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(blockIdx.x) % kBlocks;
  if (thread == 0) {
    value = 0;
    for (int i = 0; i < kThreads; ++i) value += in[blockIdx.x * kThreads + i];
  }
  cluster_sync();
  if (thread == 0 && rank == 0) {
    float sum = 0;
    for (int other = 0; other < kBlocks; ++other) sum += *dsmem(&value, other);
    sums[blockIdx.x / kBlocks] = sum;
  }
  cluster_sync();
  barrier.sync();
  if (thread != 0) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x / kBlocks; ++i) sum += sums[i];
  out[blockIdx.x] = sum;
}

__global__ void add_atomically(const float* in, float* out) { atomicAdd(out, in[threadIdx.x]); }

const std::vector<Entry> kernels = {
    {"sum_of_next", start<sum_of_next<true>>},
    {"next_before_it_begins", start<sum_of_next<false>>},
    PLANTED(arrive_and_end),
    PLANTED(add_atomically),
    PLANTED(sum_in_grid),
};

}  // namespace planted
