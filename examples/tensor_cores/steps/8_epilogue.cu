// Step 8: C goes through shared memory, and TMA stores it.
//
// In registers, a thread's neighbours in C are two elements, and a warp's store writes 16 bytes in
// each of 8 rows: half of a sector of memory. stmatrix writes the sums to shared memory as rows,
// and TMA stores whole lines of 128 bytes while the consumers multiply the next tile. It also
// leaves out what lies beyond an edge. A half of a consumer's columns at a time needs 16 KiB, so
// that the ring keeps four stages.
//
// Prediction: the time that a consumer stores shrinks, and with it the time without products. The
// shorter K, the more that is worth.
#include "diglot/mma/matrix.cuh"
#include "diglot/products/ring.cuh"
#include "diglot/sync/cluster.cuh"
#include "steps.h"

namespace step8 {

using namespace ladder;

constexpr int kRows = 128, kColumns = 256, kStages = 4, kConsumers = 2, kGroup = 8;
constexpr int kCluster = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
using Tiles = Stage<kRows, kColumns>;
constexpr int kHalf = kColumns / 2;
using TileC = SmemTile<kType, Major::kK, Swizzle::k128, 64, kHalf>;

struct Shared {
  Tiles tiles[kStages];
  alignas(1024) char c[kConsumers][TileC::kBytes];
};

// Loads a tile of A for this block, and half of a tile of B for both.
DIGLOT_DEVICE void load_shared(Tiles& tiles, Mbarrier& full, const TensorMap& a, const TensorMap& b,
                               int rank, int row, int column, int depth) {
  constexpr int kPanels = Tiles::B::kPanels / kCluster;
  full.arrive_expect(Tiles::kBytes);
  tma_load(a, tiles.a, full, {depth, row});
  DIGLOT_UNROLL
  for (int i = 0; i < kPanels; ++i) {
    const int panel = rank * kPanels + i;
    tma_load_multicast(b, tiles.b + panel * Tiles::B::kPanelBytes, full,
                       {column + panel * kLine, depth}, (1 << kCluster) - 1);
  }
}

// A consumer's first threads tell a block each that it has multiplied a stage.
DIGLOT_DEVICE void release(Mbarrier& empty) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  if (thread < kCluster) empty.release_at(thread);
}

// Stores a consumer's 64 rows: it writes a half to shared memory, and TMA stores it while the
// consumer goes on.
DIGLOT_DEVICE void store_by_tma(const float (&sums)[kColumns / 2], char* memory, const TensorMap& c,
                                int consumer, int row, int column) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads, lane = thread % 32;
  DIGLOT_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (thread == 0) wait_bulk_groups_read<0>();  // the store before has read the memory
    named_barrier_sync(1 + consumer, kWarpgroupThreads);
    DIGLOT_UNROLL
    for (int first = 0; first < kHalf; first += 16) {
      const float* const from = sums + (half * kHalf + first) / 2;
      const uint32_t words[4] = {pack(from[0], from[1]), pack(from[2], from[3]),
                                 pack(from[4], from[5]), pack(from[6], from[7])};
      const int tile_row = thread / 32 * 16 + lane % 16, tile_column = first + lane / 16 * 8;
      store_matrices(words, memory + TileC::offset(tile_row, tile_column));
    }
    fence_async_proxy();  // each thread's writes, before TMA reads them
    named_barrier_sync(1 + consumer, kWarpgroupThreads);
    if (thread != 0) continue;
    DIGLOT_UNROLL
    for (int panel = 0; panel < TileC::kPanels; ++panel) {
      tma_store(c, memory + panel * TileC::kPanelBytes,
                {column + half * kHalf + panel * kLine, row});
    }
    commit_bulk_group();
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    multiply_tiles(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                   const __grid_constant__ TensorMap c, const TileSchedule schedule, int steps) {
  extern __shared__ __align__(1024) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
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
      for (int step = 0; step < steps; ++step, ++turn) {
        const int stage = turn % kStages, round = turn / kStages;
        wait_for_readers(empty[stage], (round + 1) % 2);
        load_shared(shared.tiles[stage], full[stage], a, b, rank, row, column, step * kDepth);
      }
    }
    __syncwarp();  // the cluster's barrier is for whole warps
  } else {
    take_registers<232>();
    for (int64_t index = first; index < schedule.count(); index += clusters) {
      float sums[kColumns / 2] = {};
      fence_accumulators(sums);
      for (int step = 0; step < steps; ++step, ++turn) {
        const int stage = turn % kStages, round = turn / kStages;
        full[stage].wait(round % 2);
        shared.tiles[stage].multiply(sums, first_row);
        wgmma_wait<1>();
        if (step > 0) release(empty[(turn - 1) % kStages]);
      }
      wgmma_wait<0>();
      fence_accumulators(sums);
      release(empty[(turn - 1) % kStages]);
      const Tile tile = schedule.tile(index);
      const int row = (tile.row * kCluster + rank) * kRows + first_row;
      store_by_tma(sums, shared.c[consumer], c, consumer, row, tile.column * kColumns);
    }
    // A block's shared memory ends with the block.
    if (threadIdx.x % kWarpgroupThreads == 0) wait_bulk_groups_read<0>();
    __syncwarp();
  }
  cluster_sync();
}

void multiply(const Product& product, cudaStream_t stream) {
  const TileSchedule schedule{tiles_of(product.m, kRows * kCluster), tiles_of(product.n, kColumns),
                              1, kGroup / kCluster};
  const int64_t clusters = std::min<int64_t>(schedule.count(), multiprocessors() / kCluster);
  Launch how{dim3(static_cast<unsigned>(clusters * kCluster)), kThreads};
  how.shared_bytes = sizeof(Shared);
  how.cluster_blocks = kCluster;
  launch<multiply_tiles>(how, stream, map_of(product.a, product.m, product.k, kRows),
                         map_of(product.b, product.k, product.n, kDepth),
                         map_of(product.c, product.m, product.n, 64), schedule,
                         tiles_of(product.k, kDepth));
}

}  // namespace step8
