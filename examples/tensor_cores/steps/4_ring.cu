// Step 4: a warp of its own loads, into a ring of four stages.
//
// The producer runs ahead of the consumers: while they multiply a stage, TMA loads the next three.
// A stage has two mbarriers. At `full` the consumers wait for its bytes. At `empty` the producer
// waits until both consumers have multiplied it.
//
// Prediction: loads no longer add to the time. What remains is the slower of tensor cores and L2. A
// tile of 128 x 128 asks L2 for 2 GiB at 4096 x 4096 x 4096, which takes longer than the products.
#include "steps.h"

namespace step4 {

using namespace ladder;

constexpr int kRows = 128, kColumns = 128, kStages = 4, kConsumers = 2;
constexpr int kThreads = kConsumers * kWarpgroupThreads + 32;  // the last warp is the producer
using Tiles = Stage<kRows, kColumns>;

__global__ void __launch_bounds__(kThreads)
    multiply_tiles(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                   const Product product) {
  extern __shared__ __align__(1024) char memory[];
  Tiles* const tiles = reinterpret_cast<Tiles*>(memory);
  __shared__ Mbarrier full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (Mbarrier& barrier : full) barrier.init(1);            // the producer
    for (Mbarrier& barrier : empty) barrier.init(kConsumers);  // one thread of each
    fence_mbarrier_init();
  }
  __syncthreads();

  const int row = static_cast<int>(blockIdx.y) * kRows;
  const int column = static_cast<int>(blockIdx.x) * kColumns;
  const int steps = (product.k + kDepth - 1) / kDepth, consumer = warpgroup();
  if (consumer == kConsumers) {
    if (threadIdx.x % 32 != 0) return;
    for (int step = 0; step < steps; ++step) {
      const int stage = step % kStages, round = step / kStages;
      // The phase before a new barrier's first counts as ended: the first round waits for nobody.
      empty[stage].wait((round + 1) % 2);
      tiles[stage].load(full[stage], a, b, row, column, step * kDepth);
    }
    return;
  }
  const int first_row = consumer * 64;
  float sums[kColumns / 2] = {};
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, round = step / kStages;
    full[stage].wait(round % 2);
    fence_accumulators(sums);
    tiles[stage].multiply(sums, first_row);
    wgmma_wait<0>();
    fence_accumulators(sums);
    if (threadIdx.x % kWarpgroupThreads == 0) empty[stage].arrive();
  }
  store_by_threads(sums, product, row + first_row, column);
}

void multiply(const Product& product, cudaStream_t stream) {
  Launch how{dim3(static_cast<unsigned>(tiles_of(product.n, kColumns)),
                  static_cast<unsigned>(tiles_of(product.m, kRows))),
             kThreads};
  how.shared_bytes = kStages * sizeof(Tiles);
  launch<multiply_tiles>(how, stream, map_of(product.a, product.m, product.k, kRows),
                         map_of(product.b, product.k, product.n, kDepth), product);
}

}  // namespace step4
