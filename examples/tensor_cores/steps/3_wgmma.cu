// Step 3: tensor cores multiply, and TMA loads.
//
// Two warpgroups of 128 threads multiply 64 rows each by wgmma, which reads both tiles from shared
// memory. One thread has TMA copy tiles there. An mbarrier counts their bytes as they arrive. What
// lies beyond an edge arrives as zeros.
//
// Prediction: tensor cores make 2048 multiply-adds a cycle and SM, 16 times as many as before. But
// a block loads, then multiplies, then loads again. Only other blocks of the SM fill the gaps.
#include "steps.h"

namespace step3 {

using namespace ladder;

constexpr int kRows = 128, kColumns = 128, kThreads = 2 * kWarpgroupThreads;
using Tiles = Stage<kRows, kColumns>;

__global__ void __launch_bounds__(kThreads)
    multiply_tiles(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                   const Product product) {
  extern __shared__ __align__(1024) char memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  __shared__ Mbarrier full;
  if (threadIdx.x == 0) {
    full.init(1);  // the thread that loads
    fence_mbarrier_init();
  }
  __syncthreads();

  const int row = static_cast<int>(blockIdx.y) * kRows;
  const int column = static_cast<int>(blockIdx.x) * kColumns;
  const int first_row = warpgroup() * 64;
  float sums[kColumns / 2] = {};
  for (int depth = 0, step = 0; depth < product.k; depth += kDepth, ++step) {
    if (threadIdx.x == 0) tiles.load(full, a, b, row, column, depth);
    full.wait(step % 2);
    fence_accumulators(sums);
    tiles.multiply(sums, first_row);
    wgmma_wait<0>();
    fence_accumulators(sums);
    __syncthreads();  // all products have read the tiles
  }
  store_by_threads(sums, product, row + first_row, column);
}

void multiply(const Product& product, cudaStream_t stream) {
  Launch how{dim3(static_cast<unsigned>(tiles_of(product.n, kColumns)),
                  static_cast<unsigned>(tiles_of(product.m, kRows))),
             kThreads};
  how.shared_bytes = sizeof(Tiles);
  launch<multiply_tiles>(how, stream, map_of(product.a, product.m, product.k, kRows),
                         map_of(product.b, product.k, product.n, kDepth), product);
}

}  // namespace step3
