// Step 5: tiles of 128 x 256, for which the consumers take the producer's registers.
//
// Each element of A is now used 256 times, and L2 is asked for three quarters of the bytes. wgmma
// reads less shared memory for each product, too. A thread has 128 sums. A launch of 384 threads
// gives each 168 registers; the producer's warpgroup keeps 40, and the consumers take 232.
//
// A consumer also issues the products of a stage before it waits for those of the stage before. So
// the tensor cores have work while it waits at a barrier.
//
// Prediction: at 4096 x 4096 x 4096, L2 takes little longer than the tensor cores.
#include "steps.h"

namespace step5 {

using namespace ladder;

constexpr int kRows = 128, kColumns = 256, kStages = 4, kConsumers = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
using Tiles = Stage<kRows, kColumns>;

__global__ void __launch_bounds__(kThreads, 1)
    multiply_tiles(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                   const Product product) {
  extern __shared__ __align__(1024) char memory[];
  Tiles* const tiles = reinterpret_cast<Tiles*>(memory);
  __shared__ Mbarrier full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (Mbarrier& barrier : full) barrier.init(1);
    for (Mbarrier& barrier : empty) barrier.init(kConsumers);
    fence_mbarrier_init();
  }
  __syncthreads();

  const int row = static_cast<int>(blockIdx.y) * kRows;
  const int column = static_cast<int>(blockIdx.x) * kColumns;
  const int steps = (product.k + kDepth - 1) / kDepth, consumer = warpgroup() - 1;
  if (consumer < 0) {
    release_registers<40>();
    if (threadIdx.x != 0) return;
    for (int step = 0; step < steps; ++step) {
      const int stage = step % kStages, round = step / kStages;
      empty[stage].wait((round + 1) % 2);
      tiles[stage].load(full[stage], a, b, row, column, step * kDepth);
    }
    return;
  }
  take_registers<232>();
  const int first_row = consumer * 64;
  float sums[kColumns / 2] = {};
  fence_accumulators(sums);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, round = step / kStages;
    full[stage].wait(round % 2);
    tiles[stage].multiply(sums, first_row);
    wgmma_wait<1>();  // the products of the step before have ended
    if (step > 0 && threadIdx.x % kWarpgroupThreads == 0) empty[(step - 1) % kStages].arrive();
  }
  wgmma_wait<0>();
  fence_accumulators(sums);
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

}  // namespace step5
