// Kernels that copy by TMA: right, and with a bug each. For tests/test_interpreted_tma.py and
// tests/test_planted_table.py. `in` and `out` have a tile of 8 rows of 32 floats for each block,
// which has a thread for each element.
#include "diglot/mma/tma.cuh"

#include "diglot/sync/cluster.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kRows = 8, kColumns = 32;
constexpr int kTile = kRows * kColumns;
constexpr uint32_t kTileBytes = kTile * sizeof(float);

enum class Fault {
  kNone,
  kBytes,
  kSwizzle,
  kMisaligned,
  kEndsEarly,
  kNegative,
  kOddColumn,
  kRank,
  kReadOnly,
  kOutOfShared,
};

// Where a 128-byte swizzle keeps the i-th element of a tile.
__device__ int place_of(int i) {
  const int row = i / kColumns, column = i % kColumns;
  return row * kColumns + ((column / 4 ^ row % 8) * 4 | column % 4);
}

// Adds to each element its number within the tile.
template <Fault kFault>
__global__ void add_number(const __grid_constant__ TensorMap in,
                           const __grid_constant__ TensorMap out) {
  extern __shared__ __align__(1024) char stages[];
  __shared__ Mbarrier full;
  auto* const tile = reinterpret_cast<float*>(stages + (kFault == Fault::kMisaligned ? 512 : 0));
  const int i = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) * kRows;
  if (i == 0) {
    tma_prefetch_map(in);
    tma_prefetch(in, {0, row});
    full.init(1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (i == 0) {
    full.arrive_expect(kFault == Fault::kBytes ? 2 * kTileBytes : kTileBytes);
    if (kFault == Fault::kRank) {
      tma_load(in, tile, full, {0, row, 0});
    } else {
      tma_load(in, kFault == Fault::kOutOfShared ? tile + 2 * kTile : tile, full, {0, row});
    }
  }
  full.wait(0);
  tile[kFault == Fault::kSwizzle ? i : place_of(i)] += static_cast<float>(i);
  fence_async_proxy();
  __syncthreads();
  if (i == 0) {
    tma_store(kFault == Fault::kReadOnly ? in : out, tile,
              {kFault == Fault::kNegative    ? -4
               : kFault == Fault::kOddColumn ? 2
                                             : 0,
               row});
    commit_bulk_group();
    if (kFault != Fault::kEndsEarly) wait_bulk_groups_read<0>();
  }
}

// Stores both halves of a tile through one buffer.
template <bool kWaits>
__global__ void through_one_buffer(const float* in, const __grid_constant__ TensorMap out) {
  __shared__ __align__(128) float half[kTile / 2];
  const int i = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  for (int part = 0; part < 2; ++part) {
    if (i < kTile / 2) half[i] = in[block * kTile + part * kTile / 2 + i];
    fence_async_proxy();
    __syncthreads();
    if (i == 0) {
      tma_store(out, half, {0, block * kRows + part * kRows / 2});
      commit_bulk_group();
      if (kWaits) wait_bulk_groups_read<0>();
    }
    __syncthreads();
  }
  if (i == 0) wait_bulk_groups<0>();
}

// out[first of the tile] = the sum of what the thread that stored a tile reads of it.
template <bool kWaitsForWrites>
__global__ void read_back(const float* in, float* out) {
  __shared__ __align__(16) float tile[kTile];
  const int i = static_cast<int>(threadIdx.x);
  float* const stored = out + blockIdx.x * kTile;
  tile[i] = in[blockIdx.x * kTile + i];
  fence_async_proxy();
  __syncthreads();
  if (i != 0) return;
  bulk_store(stored, tile, kTileBytes);
  commit_bulk_group();
  if (kWaitsForWrites) {
    wait_bulk_groups<0>();
  } else {
    wait_bulk_groups_read<0>();
  }
  float sum = 0;
  for (int j = 0; j < kTile; ++j) sum += stored[j];
  wait_bulk_groups<0>();
  *stored = sum;
}

// Doubles a tile: docs/tma.md shows it.
__global__ void double_tiles(const __grid_constant__ TensorMap in,
                             const __grid_constant__ TensorMap out) {
  __shared__ __align__(1024) float tile[kTile];
  __shared__ Mbarrier full;
  const int row = static_cast<int>(blockIdx.x) * kRows;
  if (threadIdx.x == 0) {
    full.init(1);
    fence_mbarrier_init();
    full.arrive_expect(sizeof(tile));
    tma_load(in, tile, full, {0, row});  // column and row of the tile's first element
  }
  __syncthreads();
  full.wait(0);
  tile[threadIdx.x] *= 2;
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    tma_store(out, tile, {0, row});
    commit_bulk_group();
    wait_bulk_groups_read<0>();
  }
}

template <uint32_t kBytes>
__global__ void plain_copy(const float* in, float* out) {
  __shared__ __align__(16) float tile[kTile];
  __shared__ Mbarrier full;
  if (threadIdx.x != 0) return;
  full.init(1);
  fence_mbarrier_init();
  full.arrive_expect(kBytes);
  bulk_prefetch(in + blockIdx.x * kTile, kTileBytes);
  bulk_load(tile, in + blockIdx.x * kTile, kBytes, full);
  full.wait(0);
  bulk_store(out + blockIdx.x * kTile, tile, kBytes);
  commit_bulk_group();
  wait_bulk_groups_read<0>();
}

enum class Share { kRight, kLeavesEarly, kMask, kBarrierBefore };

// Each block of a cluster of two loads half of the cluster's first tile, for both.
template <Share kShare>
__global__ void share_tile(const __grid_constant__ TensorMap in, float* out) {
  __shared__ __align__(1024) float tile[kTile];
  __shared__ Mbarrier full;
  const int i = static_cast<int>(threadIdx.x);
  const int rank = static_cast<int>(blockIdx.x) % 2;
  const int row = (static_cast<int>(blockIdx.x) - rank) * kRows + rank * kRows / 2;
  if (kShare == Share::kBarrierBefore) cluster_sync();
  if (i == 0) {
    full.init(1);
    fence_mbarrier_init();
    if (kShare != Share::kLeavesEarly || rank == 0) full.arrive_expect(kTileBytes);
  }
  if (kShare == Share::kBarrierBefore) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  if (kShare == Share::kLeavesEarly && rank == 1) return;
  if (i == 0) {
    tma_load_multicast(in, tile + rank * kTile / 2, full, {0, row}, kShare == Share::kMask ? 7 : 3);
  }
  full.wait(0);
  out[blockIdx.x * kTile + i] = tile[i];
}

// Either block of a cluster sends its tile to the other.
__global__ void send_tile(const float* in, float* out) {
  __shared__ __align__(16) float tile[kTile], received[kTile];
  __shared__ Mbarrier full;
  const int i = static_cast<int>(threadIdx.x);
  const uint32_t other = 1 - blockIdx.x % 2;
  tile[i] = in[blockIdx.x * kTile + i];
  fence_async_proxy();
  if (i == 0) {
    full.init(1);
    fence_mbarrier_init();
    full.arrive_expect(kTileBytes);
  }
  cluster_sync();
  if (i == 0) {
    bulk_send(cluster_address(shared_address(received), other), tile, kTileBytes,
              cluster_address(shared_address(&full), other));
  }
  full.wait(0);
  out[blockIdx.x * kTile + i] = received[i];
  cluster_sync();
}

enum class Map { kWritten, kInShared };

// One thread loads a tile by a copy of the map.
template <Map kMap>
__global__ void load_by_copy(const __grid_constant__ TensorMap in, float* out) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ TensorMap copy;
  __shared__ Mbarrier full;
  if (threadIdx.x != 0) return;
  full.init(1);
  fence_mbarrier_init();
  full.arrive_expect(kTileBytes / 2);
  copy = in;
  if (kMap == Map::kWritten) fence_tensor_map_release();
  tma_load(copy, tile, full, {0, 0});
  full.wait(0);
  out[blockIdx.x] = tile[0];
}

// All blocks add their tiles to the first one, by boxes of half a tile.
__global__ void add_tiles(const float* in, const __grid_constant__ TensorMap out) {
  __shared__ __align__(128) float tile[kTile];
  const int i = static_cast<int>(threadIdx.x);
  tile[i] = in[blockIdx.x * kTile + i];
  fence_async_proxy();
  __syncthreads();
  if (i == 0) {
    for (int part = 0; part < 2; ++part) {
      tma_reduce<Reduction::kAdd>(out, tile + part * kTile / 2, {0, part * kRows / 2});
    }
    commit_bulk_group();
    wait_bulk_groups<0>();
  }
}

template <Reduction kReduction>
__global__ void reduce_wrongly(const float*, const __grid_constant__ TensorMap out) {
  __shared__ __align__(128) float tile[kTile];
  if (threadIdx.x == 0) tma_reduce<kReduction>(out, tile, {0, 0});
}

// --- hosts ---------------------------------------------------------------------------------------

TensorMap map_of(const float* tiles, unsigned rows, Swizzle swizzle, unsigned box_rows) {
  TensorDescription tensor;
  tensor.type = tensor_type<float>();
  tensor.address = tiles;
  tensor.shape = {kColumns, rows};
  tensor.strides = {kColumns * sizeof(float)};
  tensor.box = {kColumns, box_rows};
  tensor.swizzle = swizzle;
  return tensor_map(tensor);
}

// The test gives a block for each element of `out`.
Launch by_tiles(Launch how) {
  how.grid.x /= kTile;
  return how;
}

unsigned rows_of(const Launch& how) { return how.grid.x / kColumns; }

TensorMap map_of_tiles(const float* tiles, unsigned rows) {
  return map_of(tiles, rows, Swizzle::k128, kRows);
}
TensorMap map_of_halves(const float* tiles, unsigned rows) {
  return map_of(tiles, rows, Swizzle::kNone, kRows / 2);
}

template <auto kKernel>
constexpr Start start_plain = [](const Launch& how, const float* in, float* out) {
  launch<kKernel>(by_tiles(how), nullptr, in, out);
};
template <auto kKernel>
constexpr Start start_to_map = [](const Launch& how, const float* in, float* out) {
  launch<kKernel>(by_tiles(how), nullptr, in, map_of_halves(out, rows_of(how)));
};
template <auto kKernel>
constexpr Start start_from_map = [](const Launch& how, const float* in, float* out) {
  launch<kKernel>(by_tiles(how), nullptr, map_of_halves(in, rows_of(how)), out);
};
template <auto kKernel>
constexpr Start start_between_maps = [](const Launch& how, const float* in, float* out) {
  launch<kKernel>(by_tiles(how), nullptr, map_of_tiles(in, rows_of(how)),
                  map_of_tiles(out, rows_of(how)));
};
template <Fault kFault>
constexpr Start start_add = start_between_maps<add_number<kFault>>;

void start_without_map(const Launch& how, const float*, float* out) {
  launch<add_number<Fault::kNone>>(by_tiles(how), nullptr, TensorMap{},
                                   map_of_tiles(out, rows_of(how)));
}
// With a map of memory that the launch is not given.
void start_with_old_map(const Launch& how, const float*, float* out) {
  static std::vector<float> old(4096);
  const auto past = reinterpret_cast<uintptr_t>(old.data()) % 16 / sizeof(float);
  launch<add_number<Fault::kNone>>(by_tiles(how), nullptr,
                                   map_of_tiles(old.data() + (4 - past) % 4, kRows),
                                   map_of_tiles(out, rows_of(how)));
}
// With a map of a row more than there is.
void start_with_long_map(const Launch& how, const float* in, float* out) {
  launch<add_number<Fault::kNone>>(by_tiles(how), nullptr, map_of_tiles(in, rows_of(how)),
                                   map_of_tiles(out, rows_of(how) + 1));
}

const std::vector<Entry> kernels = {
    {"add_number", start_add<Fault::kNone>},
    {"bytes_of_two_tiles", start_add<Fault::kBytes>},
    {"no_swizzle", start_add<Fault::kSwizzle>},
    {"misaligned_stage", start_add<Fault::kMisaligned>},
    {"ends_before_its_store", start_add<Fault::kEndsEarly>},
    {"negative_store", start_add<Fault::kNegative>},
    {"odd_column", start_add<Fault::kOddColumn>},
    {"wrong_rank", start_add<Fault::kRank>},
    {"no_map", start_without_map},
    {"store_to_input", start_add<Fault::kReadOnly>},
    {"beyond_stages", start_add<Fault::kOutOfShared>},
    {"old_map", start_with_old_map},
    {"long_map", start_with_long_map},
    {"through_one_buffer", start_to_map<through_one_buffer<true>>},
    {"overwritten_buffer", start_to_map<through_one_buffer<false>>},
    {"read_back", start_plain<read_back<true>>},
    {"read_back_too_soon", start_plain<read_back<false>>},
    {"double_tiles", start_between_maps<double_tiles>},
    {"plain_copy", start_plain<plain_copy<kTileBytes>>},
    {"plain_copy_of_1000_bytes", start_plain<plain_copy<1000>>},
    {"share_tile", start_from_map<share_tile<Share::kRight>>},
    {"leaves_cluster_early", start_from_map<share_tile<Share::kLeavesEarly>>},
    {"multicast_beyond_cluster", start_from_map<share_tile<Share::kMask>>},
    {"send_tile", start_plain<send_tile>},
    {"add_tiles", start_to_map<add_tiles>},
    {"minimum_of_floats", start_to_map<reduce_wrongly<Reduction::kMin>>},
    {"multicast_after_early_barrier", start_from_map<share_tile<Share::kBarrierBefore>>},
    {"written_map", start_from_map<load_by_copy<Map::kWritten>>},
    {"map_in_shared", start_from_map<load_by_copy<Map::kInShared>>},
};

}  // namespace planted
