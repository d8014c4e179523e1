// Asynchronous operations, some after a wait and some without one, and a memcpy. For
// tests/test_races_of_operations.py.
#include "diglot/mma/tma.cuh"
#include "diglot/mma/wgmma.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

using Tile = SmemTile<MmaType::kBfloat16, Major::kK, Swizzle::k128, 64, 64>;

enum class Fault { kNone, kOneWarpWaits, kTwoLoads };

// out[block] = an element of a product of a tile with itself.
template <Fault kFault>
__global__ void square(const float* in, float* out) {
  __shared__ __align__(1024) char tile[Tile::kBytes];
  __shared__ Mbarrier full;
  const bool is_first = threadIdx.x == 0;
  if (is_first) {
    full.init(1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (is_first) {
    constexpr int kLoads = kFault == Fault::kTwoLoads ? 2 : 1;
    full.arrive_expect(kLoads * Tile::kBytes);
    for (int i = 0; i < kLoads; ++i) bulk_load(tile, in, Tile::kBytes, full);
  }
  if (kFault != Fault::kOneWarpWaits || threadIdx.x < 32) full.wait(0);
  const uint64_t whole = Tile::descriptor(shared_address(tile), 0, 0);
  float sums[32] = {};
  fence_accumulators(sums);
  wgmma_fence();
  wgmma<MmaType::kBfloat16>(sums, whole, whole, true);
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(sums);
  if (is_first) out[blockIdx.x] = sums[0];
}

// All threads write the same words.
__global__ void copy_words(const float* in, float* out) {
  __shared__ float words[2];
  memcpy(&words[threadIdx.x % 2], in + threadIdx.x, sizeof(float));
  out[blockIdx.x] = words[0];
}

const std::vector<Entry> kernels = {
    {"square", start<square<Fault::kNone>>},
    {"one_warp_waits", start<square<Fault::kOneWarpWaits>>},
    {"two_loads", start<square<Fault::kTwoLoads>>},
    PLANTED(copy_words),
};

}  // namespace planted
