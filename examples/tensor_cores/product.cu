// The smallest complete product on Hopper's tensor cores in CUDA C++: C = A B. The matrices are
// row-major bfloat16, of M x K, K x N and M x N; K and N are multiples of 8. Twin of
// product_triton.py; docs/tensor_cores.md steps through it.
//
// A block computes 128 x 128 elements of C. One thread, the producer, has TMA load tiles of A and B
// into a ring of stages. Two warpgroups, the consumers, multiply them, 64 rows each.
#include "product.h"

#include "diglot/launch/launch.h"
#include "diglot/mma/matrix.cuh"
#include "diglot/mma/tma.cuh"
#include "diglot/mma/warpgroup.cuh"
#include "diglot/mma/wgmma.cuh"
#include "diglot/types.cuh"

namespace {

using namespace diglot;

constexpr int kRows = 128, kColumns = 128, kDepth = 64;  // of a block's tiles
constexpr int kStages = 4;
constexpr int kConsumers = 2;
constexpr int kConsumerRows = kRows / kConsumers;
constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
constexpr int kPanel = 64;  // columns that a swizzle of 128 bytes spans

// K is contiguous in A, and N in B. C's tile is A's layout with columns in place of K.
constexpr MmaType kType = MmaType::kBfloat16;
using TileA = SmemTile<kType, Major::kK, Swizzle::k128, kRows, kDepth>;
using TileB = SmemTile<kType, Major::kMn, Swizzle::k128, kColumns, kDepth>;
using TileC = SmemTile<kType, Major::kK, Swizzle::k128, kConsumerRows, kColumns>;

struct Shared {
  char a[kStages][TileA::kBytes];
  char b[kStages][TileB::kBytes];
  char c[kConsumers][TileC::kBytes];
};

// Fills the ring, one stage for each step along K.
DIGLOT_DEVICE void produce(Shared& tiles, Mbarrier* full, Mbarrier* empty, const TensorMap& a,
                           const TensorMap& b, int row, int column, int steps) {
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, round = step / kStages;
    // The phase before a new barrier's first counts as ended: the first round waits for nobody.
    empty[stage].wait((round + 1) % 2);
    full[stage].arrive_expect(TileA::kBytes + TileB::kBytes);
    tma_load(a, tiles.a[stage], full[stage], {step * kDepth, row});
    for (int panel = 0; panel < TileB::kPanels; ++panel) {
      tma_load(b, tiles.b[stage] + panel * TileB::kPanelBytes, full[stage],
               {column + panel * kPanel, step * kDepth});
    }
  }
}

// Multiplies the tiles in the ring, stage by stage.
DIGLOT_DEVICE void consume(float (&sums)[kColumns / 2], Shared& tiles, Mbarrier* full,
                           Mbarrier* empty, int first_row, int steps) {
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, round = step / kStages;
    full[stage].wait(round % 2);
    const uint32_t a = shared_address(tiles.a[stage]), b = shared_address(tiles.b[stage]);
    fence_accumulators(sums);
    wgmma_fence();
    for (int k = 0; k < kDepth; k += depth_of(kType)) {
      wgmma<kType, kType, Major::kK, Major::kMn>(sums, TileA::descriptor(a, first_row, k),
                                                 TileB::descriptor(b, 0, k), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
    fence_accumulators(sums);
    if (threadIdx.x % kWarpgroupThreads == 0) empty[stage].arrive();
  }
}

// Writes a consumer's sums to its tile in shared memory, which TMA then stores.
DIGLOT_DEVICE void store(const float (&sums)[kColumns / 2], char* tile, const TensorMap& c,
                         int consumer, int row, int column) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads, lane = thread % 32;
  for (int first = 0; first < kColumns; first += 16) {
    uint32_t words[4];  // four matrices of 8 x 8
    for (int i = 0; i < 4; ++i) {
      const float* const pair = sums + first / 2 + 2 * i;
      const bfloat16 values[] = {convert<bfloat16>(pair[0]), convert<bfloat16>(pair[1])};
      memcpy(&words[i], values, sizeof(words[i]));
    }
    const int tile_row = thread / 32 * 16 + lane % 16, tile_column = first + lane / 16 * 8;
    store_matrices(words, tile + TileC::offset(tile_row, tile_column));
  }
  fence_async_proxy();  // each thread's writes, before TMA reads them
  named_barrier_sync(1 + consumer, kWarpgroupThreads);
  if (thread != 0) return;
  for (int panel = 0; panel < TileC::kPanels; ++panel) {
    tma_store(c, tile + panel * TileC::kPanelBytes, {column + panel * kPanel, row});
  }
  commit_bulk_group();
  wait_bulk_groups_read<0>();  // a block's shared memory ends with the block
}

__global__ void __launch_bounds__(kThreads, 1)
    multiply(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
             const __grid_constant__ TensorMap c, int steps) {
  extern __shared__ __align__(1024) char memory[];
  Shared& tiles = *reinterpret_cast<Shared*>(memory);
  __shared__ Mbarrier full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (Mbarrier& barrier : full) barrier.init(1);            // the producer
    for (Mbarrier& barrier : empty) barrier.init(kConsumers);  // one thread of each
    fence_mbarrier_init();
  }
  __syncthreads();

  const int row = static_cast<int>(blockIdx.y) * kRows;
  const int column = static_cast<int>(blockIdx.x) * kColumns;
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroupThreads - 1;
  if (consumer < 0) {
    release_registers<40>();
    if (threadIdx.x == 0) produce(tiles, full, empty, a, b, row, column, steps);
  } else {
    take_registers<232>();
    const int first_row = consumer * kConsumerRows;
    float sums[kColumns / 2] = {};
    consume(sums, tiles, full, empty, first_row, steps);
    store(sums, tiles.c[consumer], c, consumer, row + first_row, column);
  }
}

TensorMap map_of(const void* matrix, int rows, int columns, uint32_t box_rows) {
  const auto width = static_cast<uint64_t>(columns);
  return tensor_map({TensorType::kBfloat16,
                     matrix,
                     {width, static_cast<uint64_t>(rows)},
                     {width * sizeof(bfloat16)},
                     {kPanel, box_rows},
                     {},
                     Swizzle::k128});
}

}  // namespace

void product(const void* a, const void* b, void* c, int m, int n, int k, void* stream) {
  Launch how{dim3(static_cast<unsigned>((n + kColumns - 1) / kColumns),
                  static_cast<unsigned>((m + kRows - 1) / kRows)),
             kThreads};
  how.shared_bytes = sizeof(Shared);
  launch<multiply>(how, static_cast<cudaStream_t>(stream), map_of(a, m, k, kRows),
                   map_of(b, k, n, kDepth), map_of(c, m, n, kConsumerRows),
                   (k + kDepth - 1) / kDepth);
}
