// Kernels that move tiles by bulk copies: right, and with a bug each. For
// tests/test_planted_table.py.
#include "diglot/mma/tma.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kRows = 8, kColumns = 32, kTiles = 8, kStages = 2;
constexpr uint32_t kTileBytes = kRows * kColumns * sizeof(float);
constexpr int kConsumers = 128;
constexpr int kFaulty = 3;  // the tile at which most bugs act

enum class Sum {
  kRight,
  kWaitMissing,
  kWaitLate,
  kWaitEarly,
  kReleasedEarly,
  kNoFenceAfterRead,
  kParityNotFlipped,
  kBytesShort,
  kArrivalTwice,
  kNoInitFence,
  kMisalignedStage,
  kNotInitialised,
  kEndsEarly,
};

// out[block] = the sum of the block's kTiles tiles. The last warp has them loaded into a ring of
// stages; the others add them up.
template <Sum kBug>
__global__ void sum_tiles(const __grid_constant__ TensorMap map, float* out) {
  __shared__ __align__(128) float tiles[kStages][kRows * kColumns + 32];
  __shared__ Mbarrier full[kStages], empty[kStages];
  __shared__ float sums[kConsumers];
  const int thread = static_cast<int>(threadIdx.x), first_row = blockIdx.x * kTiles * kRows;
  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      if (kBug != Sum::kNotInitialised || stage != 1) full[stage].init(1);
      empty[stage].init(kConsumers);
    }
    if (kBug != Sum::kNoInitFence) fence_mbarrier_init();
  }
  __syncthreads();
  constexpr int kShift = kBug == Sum::kMisalignedStage ? 4 : 0;  // elements
  if (thread == kConsumers) {
    for (int tile = 0; tile < kTiles; ++tile) {
      const int stage = tile % kStages, round = tile / kStages;
      empty[stage].wait((round + 1) % 2);
      const bool is_short = kBug == Sum::kBytesShort && tile == kFaulty;
      full[stage].arrive_expect(is_short ? kTileBytes / 2 : kTileBytes);
      if (kBug == Sum::kArrivalTwice && tile == kFaulty) full[stage].arrive();
      tma_load(map, tiles[stage] + kShift, full[stage], {0, first_row + tile * kRows});
    }
  } else if (thread < kConsumers) {
    float sum = 0;
    const int last = kBug == Sum::kEndsEarly ? kTiles - 1 : kTiles;
    for (int tile = 0; tile < last; ++tile) {
      const int stage = tile % kStages, round = tile / kStages;
      const bool is_faulty = tile == kFaulty;
      const int parity = kBug == Sum::kParityNotFlipped ? 0 : round % 2;
      if (kBug == Sum::kWaitEarly && is_faulty) {
        full[1 - stage].wait((tile - 1) / kStages % 2);
      } else if (!is_faulty || (kBug != Sum::kWaitMissing && kBug != Sum::kWaitLate)) {
        full[stage].wait(parity);
      }
      if (kBug == Sum::kReleasedEarly && is_faulty) empty[stage].arrive();
      for (int i = thread; i < kRows * kColumns; i += kConsumers) sum += tiles[stage][i + kShift];
      if (is_faulty && kBug == Sum::kWaitLate) full[stage].wait(parity);
      if (kBug != Sum::kNoFenceAfterRead) fence_async_proxy();
      if (kBug != Sum::kReleasedEarly || !is_faulty) empty[stage].arrive();
    }
    sums[thread] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    float sum = 0;
    for (const float part : sums) sum += part;
    out[blockIdx.x] = sum;
  }
}

enum class Store {
  kRight,
  kNoFence,
  kNoBarrier,
  kNoWait,
  kNotCommitted,
  kOnlyRead,
};

// Doubles tiles: threads write them to shared memory, and one has them stored to `scratch`. In the
// end out[block] = the sum of the stored tiles.
template <Store kBug>
__global__ void store_tiles(const float* in, const __grid_constant__ TensorMap map,
                            const float* scratch, float* out) {
  __shared__ __align__(128) float tile[kRows * kColumns];
  const int thread = static_cast<int>(threadIdx.x), first_row = blockIdx.x * kTiles * kRows;
  const int first = first_row * kColumns;
  for (int t = 0; t < kTiles; ++t) {
    const bool is_faulty = t == kFaulty;
    for (int i = thread; i < kRows * kColumns; i += blockDim.x) {
      tile[i] = 2 * in[first + t * kRows * kColumns + i];
    }
    if (kBug != Store::kNoFence || !is_faulty) fence_async_proxy();
    if (kBug != Store::kNoBarrier || !is_faulty) __syncthreads();
    if (thread == 0) {
      tma_store(map, tile, {0, first_row + t * kRows});
      if (kBug != Store::kNotCommitted || !is_faulty) commit_bulk_group();
      if (kBug != Store::kNoWait || !is_faulty) wait_bulk_groups_read<0>();
    }
    __syncthreads();
  }
  if (thread == 0) {
    if (kBug == Store::kOnlyRead) {
      wait_bulk_groups_read<0>();
    } else {
      wait_bulk_groups<0>();
    }
    float sum = 0;
    for (int i = 0; i < kTiles * kRows * kColumns; ++i) sum += scratch[first + i];
    out[blockIdx.x] = sum;
  }
}

TensorDescription describe(const float* memory, unsigned blocks) {
  return {TensorType::kFloat32,
          memory,
          {kColumns, uint64_t{blocks} * kTiles * kRows},
          {kColumns * sizeof(float)},
          {kColumns, kRows}};
}

template <Sum kBug>
constexpr Start start_sum = [](const Launch& how, const float* in, float* out) {
  launch<sum_tiles<kBug>>(how, nullptr, encode(describe(in, how.grid.x)), out);
};

// The second half of `out` is scratch, which the interpreter watches.
template <Store kBug>
constexpr Start start_store = [](const Launch& how, const float* in, float* out) {
  Launch part = how;
  part.grid.x = 2;
  float* const scratch = out + 32;
#if defined(DIGLOT_INTERPRETER)
  const auto* const begin = reinterpret_cast<const char*>(scratch);
  const auto bytes = sizeof(float) * part.grid.x * kTiles * kRows * kColumns;
  const interpreter::Watch scope(std::vector<interpreter::Range>{{begin, begin + bytes}});
#endif
  launch<store_tiles<kBug>>(part, nullptr, in, encode(describe(scratch, part.grid.x)), scratch,
                            out);
};

const std::vector<Entry> kernels = {
    {"sum_tiles", start_sum<Sum::kRight>},
    {"wait_missing", start_sum<Sum::kWaitMissing>},
    {"wait_late", start_sum<Sum::kWaitLate>},
    {"wait_early", start_sum<Sum::kWaitEarly>},
    {"released_early", start_sum<Sum::kReleasedEarly>},
    {"no_fence_after_read", start_sum<Sum::kNoFenceAfterRead>},
    {"parity_not_flipped", start_sum<Sum::kParityNotFlipped>},
    {"bytes_short", start_sum<Sum::kBytesShort>},
    {"arrival_twice", start_sum<Sum::kArrivalTwice>},
    {"no_init_fence", start_sum<Sum::kNoInitFence>},
    {"misaligned_stage", start_sum<Sum::kMisalignedStage>},
    {"not_initialised", start_sum<Sum::kNotInitialised>},
    {"ends_early", start_sum<Sum::kEndsEarly>},
    {"store_tiles", start_store<Store::kRight>},
    {"no_fence_before_store", start_store<Store::kNoFence>},
    {"no_barrier_before_store", start_store<Store::kNoBarrier>},
    {"no_wait_after_store", start_store<Store::kNoWait>},
    {"store_not_committed", start_store<Store::kNotCommitted>},
    {"only_read", start_store<Store::kOnlyRead>},
};

}  // namespace planted
