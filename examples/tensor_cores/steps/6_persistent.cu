// Step 6: one block on each SM computes tile after tile, in an order that L2 likes.
//
// The ring goes on across tiles: while the consumers store a tile, the next one's operands arrive.
// Blocks start once, and make their barriers once. Neighbouring blocks compute tiles of a group of
// eight rows of tiles, so that together they read few rows of A and few columns of B
// (products/schedule.cuh).
//
// Prediction: no SM waits for a tile's first loads but at the beginning. DRAM is asked for fewer
// bytes where L2 does not hold both matrices. The bytes that L2 is asked for do not change.
#include "steps.h"

namespace step6 {

using namespace ladder;

constexpr int kRows = 128, kColumns = 256, kStages = 4, kConsumers = 2, kGroup = 8;
constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
using Tiles = Stage<kRows, kColumns>;

__global__ void __launch_bounds__(kThreads, 1)
    multiply_tiles(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                   const Product product, const TileSchedule schedule) {
  extern __shared__ __align__(1024) char memory[];
  Tiles* const tiles = reinterpret_cast<Tiles*>(memory);
  __shared__ Mbarrier full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (Mbarrier& barrier : full) barrier.init(1);
    for (Mbarrier& barrier : empty) barrier.init(kConsumers);
    fence_mbarrier_init();
  }
  __syncthreads();

  const int consumer = warpgroup() - 1, first_row = consumer * 64;
  int turn = 0;  // steps along K of all tiles so far
  if (consumer < 0) {
    release_registers<40>();
    if (threadIdx.x != 0) return;
    for (int64_t index = blockIdx.x; index < schedule.count(); index += gridDim.x) {
      const Tile tile = schedule.tile(index);
      for (int depth = 0; depth < product.k; depth += kDepth, ++turn) {
        const int stage = turn % kStages, round = turn / kStages;
        empty[stage].wait((round + 1) % 2);
        tiles[stage].load(full[stage], a, b, tile.row * kRows, tile.column * kColumns, depth);
      }
    }
    return;
  }
  take_registers<232>();
  for (int64_t index = blockIdx.x; index < schedule.count(); index += gridDim.x) {
    float sums[kColumns / 2] = {};
    fence_accumulators(sums);
    for (int depth = 0; depth < product.k; depth += kDepth, ++turn) {
      const int stage = turn % kStages, round = turn / kStages;
      full[stage].wait(round % 2);
      tiles[stage].multiply(sums, first_row);
      wgmma_wait<1>();
      if (depth > 0 && threadIdx.x % kWarpgroupThreads == 0) empty[(turn - 1) % kStages].arrive();
    }
    wgmma_wait<0>();
    fence_accumulators(sums);
    if (threadIdx.x % kWarpgroupThreads == 0) empty[(turn - 1) % kStages].arrive();
    const Tile tile = schedule.tile(index);
    store_by_threads(sums, product, tile.row * kRows + first_row, tile.column * kColumns);
  }
}

void multiply(const Product& product, cudaStream_t stream) {
  const TileSchedule schedule{tiles_of(product.m, kRows), tiles_of(product.n, kColumns), 1, kGroup};
  const int64_t blocks = std::min<int64_t>(schedule.count(), multiprocessors());
  Launch how{dim3(static_cast<unsigned>(blocks)), kThreads};
  how.shared_bytes = kStages * sizeof(Tiles);
  launch<multiply_tiles>(how, stream, map_of(product.a, product.m, product.k, kRows),
                         map_of(product.b, product.k, product.n, kDepth), product, schedule);
}

}  // namespace step6
