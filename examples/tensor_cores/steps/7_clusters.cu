// Step 7: two blocks of a cluster share the tiles of B.
//
// The blocks compute tiles one below the other, which need the same columns of B. Each loads half
// of them, and TMA writes that half to the shared memory of both: multicast. So L2 is asked for a
// third fewer bytes.
//
// A producer writes to both blocks. So it waits until the consumers of both have released a stage,
// and each consumer arrives at the barriers of both. `full` expects a tile of A and all of B,
// whoever loads it. No block may end while the other may write to it, or arrive.
//
// Prediction: L2 no longer limits. The tensor cores do, as fast as their power allows.
#include "diglot/products/ring.cuh"
#include "diglot/sync/cluster.cuh"
#include "steps.h"

namespace step7 {

using namespace ladder;

constexpr int kRows = 128, kColumns = 256, kStages = 4, kConsumers = 2, kGroup = 8;
constexpr int kCluster = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
using Tiles = Stage<kRows, kColumns>;

// Loads a tile of A for this block, and half of a tile of B for both.
DIGLOT_DEVICE void load_shared(Tiles& tiles, Mbarrier& full, const TensorMap& a, const TensorMap& b,
                               int rank, int row, int column, int depth) {
  constexpr int kHalf = Tiles::B::kPanels / kCluster;
  full.arrive_expect(Tiles::kBytes);
  tma_load(a, tiles.a, full, {depth, row});
  DIGLOT_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const int panel = rank * kHalf + i;
    tma_load_multicast(b, tiles.b + panel * Tiles::B::kPanelBytes, full,
                       {column + panel * kLine, depth}, (1 << kCluster) - 1);
  }
}

// A consumer's first threads tell a block each that it has multiplied a stage.
DIGLOT_DEVICE void release(Mbarrier& empty) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  if (thread < kCluster) empty.release_at(thread);
}

__global__ void __launch_bounds__(kThreads, 1)
    multiply_tiles(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                   const Product product, const TileSchedule schedule) {
  extern __shared__ __align__(1024) char memory[];
  Tiles* const tiles = reinterpret_cast<Tiles*>(memory);
  __shared__ Mbarrier full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (Mbarrier& barrier : full) barrier.init(1);
    for (Mbarrier& barrier : empty) barrier.init(kCluster * kConsumers);
    fence_mbarrier_init();
  }
  cluster_sync();

  // The schedule's tiles are pairs of tiles, one below the other.
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const int consumer = warpgroup() - 1, first_row = consumer * 64;
  const int64_t first = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  int turn = 0;
  if (consumer < 0) {
    release_registers<40>();
    for (int64_t index = first; threadIdx.x == 0 && index < schedule.count(); index += clusters) {
      const Tile tile = schedule.tile(index);
      const int row = (tile.row * kCluster + rank) * kRows, column = tile.column * kColumns;
      for (int depth = 0; depth < product.k; depth += kDepth, ++turn) {
        const int stage = turn % kStages, round = turn / kStages;
        wait_for_readers(empty[stage], (round + 1) % 2);
        load_shared(tiles[stage], full[stage], a, b, rank, row, column, depth);
      }
    }
    __syncwarp();  // the cluster's barrier is for whole warps
  } else {
    take_registers<232>();
    for (int64_t index = first; index < schedule.count(); index += clusters) {
      float sums[kColumns / 2] = {};
      fence_accumulators(sums);
      for (int depth = 0; depth < product.k; depth += kDepth, ++turn) {
        const int stage = turn % kStages, round = turn / kStages;
        full[stage].wait(round % 2);
        tiles[stage].multiply(sums, first_row);
        wgmma_wait<1>();
        if (depth > 0) release(empty[(turn - 1) % kStages]);
      }
      wgmma_wait<0>();
      fence_accumulators(sums);
      release(empty[(turn - 1) % kStages]);
      const Tile tile = schedule.tile(index);
      const int row = (tile.row * kCluster + rank) * kRows + first_row;
      store_by_threads(sums, product, row, tile.column * kColumns);
    }
  }
  cluster_sync();
}

void multiply(const Product& product, cudaStream_t stream) {
  const TileSchedule schedule{tiles_of(product.m, kRows * kCluster), tiles_of(product.n, kColumns),
                              1, kGroup / kCluster};
  const int64_t clusters = std::min<int64_t>(schedule.count(), multiprocessors() / kCluster);
  Launch how{dim3(static_cast<unsigned>(clusters * kCluster)), kThreads};
  how.shared_bytes = kStages * sizeof(Tiles);
  how.cluster_blocks = kCluster;
  launch<multiply_tiles>(how, stream, map_of(product.a, product.m, product.k, kRows),
                         map_of(product.b, product.k, product.n, kDepth), product, schedule);
}

}  // namespace step7
