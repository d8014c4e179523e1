// Kernels of clusters whose blocks begin and end at different times, and one of many atomic
// operations. For tests/test_interpreted_clusters.py and tests/test_interpreted_forks.py.
#include "diglot/sync/cluster.cuh"
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

__global__ void add_atomically(const float* in, float* out) { atomicAdd(out, in[threadIdx.x]); }

const std::vector<Entry> kernels = {
    {"sum_of_next", start<sum_of_next<true>>},
    {"next_before_it_begins", start<sum_of_next<false>>},
    PLANTED(arrive_and_end),
    PLANTED(add_atomically),
};

}  // namespace planted
