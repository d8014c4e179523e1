// A product by wgmma of tiles that TMA loads into a ring of stages, as in examples/tensor_cores:
// right, and with a bug each. For tests/test_planted_table.py. `in` holds bfloat16: A, by rows of
// kPitch elements, and then B, kPitch rows. Sums go to kK; what lies beyond is padding.
#include "diglot/mma/tma.cuh"
#include "diglot/mma/wgmma.cuh"
#include "diglot/types.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kRows = 64, kColumns = 64, kDepth = 64, kStages = 2;
constexpr int kK = 296, kPitch = 320, kSteps = kPitch / kDepth;
constexpr auto kType = MmaType::kBfloat16;
using TileA = SmemTile<kType, Major::kK, Swizzle::k128, kRows, kDepth>;
using TileB = SmemTile<kType, Major::kMn, Swizzle::k64, kColumns, kDepth>;

enum class Bug {
  kRight,
  kReleasedEarly,
  kTileShort,
  kTailUnmasked,
  kOtherSwizzle,
  kHalfStride,
  kShortLeading,
  kFarLeading,
};

struct Stage {
  char a[TileA::kBytes], b[TileB::kBytes];
};

// out = A B, by one warpgroup. The thread behind it has the tiles loaded.
template <Bug kBug>
__global__ void __launch_bounds__(160)
    multiply(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* out) {
  extern __shared__ __align__(1024) char memory[];
  Stage* const stages = reinterpret_cast<Stage*>(memory);
  __shared__ Mbarrier full[kStages], empty[kStages];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) full[stage].init(1), empty[stage].init(1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (thread == 128) {
    for (int step = 0; step < kSteps; ++step) {
      const int stage = step % kStages;
      empty[stage].wait((step / kStages + 1) % 2);
      full[stage].arrive_expect(TileA::kBytes + (kBug == Bug::kTileShort ? 0 : TileB::kBytes));
      tma_load(a, stages[stage].a, full[stage], {step * kDepth, 0});
      for (int panel = 0; panel < TileB::kPanels; ++panel) {
        tma_load(b, stages[stage].b + panel * TileB::kPanelBytes, full[stage],
                 {panel * TileB::kLineElements, step * kDepth});
      }
    }
  } else if (thread < 128) {
    float sums[kColumns / 2] = {};
    for (int step = 0; step < kSteps; ++step) {
      const int stage = step % kStages;
      full[stage].wait(step / kStages % 2);
      const uint32_t address_a = shared_address(stages[stage].a);
      const uint32_t address_b = shared_address(stages[stage].b);
      fence_accumulators(sums);
      wgmma_fence();
      for (int k = 0; k < kDepth; k += depth_of(kType)) {
        // Bits 16 to 29 hold the leading offset, and bits 32 to 45 the stride offset, by 16.
        uint64_t from_a = TileA::descriptor(address_a, 0, k);
        uint64_t from_b = TileB::descriptor(address_b, 0, k);
        constexpr auto kSixteenths = [](int bytes) { return static_cast<uint64_t>(bytes / 16); };
        if (kBug == Bug::kHalfStride) from_a -= kSixteenths(TileA::kAlignment / 2) << 32;
        if (kBug == Bug::kShortLeading) from_b -= kSixteenths(TileB::kPanelBytes / 2) << 16;
        if (kBug == Bug::kFarLeading) from_b += kSixteenths(8 * TileB::kPanelBytes) << 16;
        wgmma<kType, kType, Major::kK, Major::kMn>(sums, from_a, from_b, true);
      }
      wgmma_commit();
      if (kBug == Bug::kReleasedEarly && thread == 0) empty[stage].arrive();
      wgmma_wait<0>();
      fence_accumulators(sums);
      if (kBug != Bug::kReleasedEarly && thread == 0) empty[stage].arrive();
    }
    DIGLOT_UNROLL
    for (int i = 0; i < kColumns / 2; ++i) {
      out[accumulator_row(thread, i) * kColumns + accumulator_column(thread, i)] = sums[i];
    }
  }
}

TensorMap map_of(const bfloat16* memory, int rows, int columns, int pitch, int box_rows, int line,
                 Swizzle swizzle) {
  TensorDescription tensor;
  tensor.type = TensorType::kBfloat16;
  tensor.address = memory;
  tensor.shape = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  tensor.strides = {2 * static_cast<uint64_t>(pitch)};
  tensor.box = {static_cast<uint32_t>(line), static_cast<uint32_t>(box_rows)};
  tensor.swizzle = swizzle;
  return tensor_map(tensor);
}

// The kernel may touch `out`, and A and B except for their padding.
#if defined(DIGLOT_INTERPRETER)
std::vector<interpreter::Range> ranges_of(const bfloat16* in, const float* out) {
  const auto* const a = reinterpret_cast<const char*>(in);
  const auto* const b = reinterpret_cast<const char*>(in + kRows * kPitch);
  const auto* const sums = reinterpret_cast<const char*>(out);
  constexpr std::size_t kRow = sizeof(bfloat16) * kColumns;  // of B, whose last rows are padding
  return {{a, b, false, sizeof(bfloat16) * kK, sizeof(bfloat16) * kPitch},
          {b, b + kRow * kPitch, false, kRow * kK, kRow * kPitch},
          {sums, sums + sizeof(float) * kRows * kColumns}};
}
#endif

// The test gives a block for each element of `out`.
template <Bug kBug>
constexpr Start start_product = [](const Launch& how, const float* in, float* out) {
  const int depth = kBug == Bug::kTailUnmasked ? kPitch : kK;
  const Swizzle swizzle = kBug == Bug::kOtherSwizzle ? Swizzle::kNone : Swizzle::k128;
  const auto* const values = reinterpret_cast<const bfloat16*>(in);
#if defined(DIGLOT_INTERPRETER)
  const interpreter::Arguments scope(ranges_of(values, out));
#endif
  const TensorMap a = map_of(values, kRows, depth, kPitch, kRows, TileA::kLineElements, swizzle);
  const TensorMap b = map_of(values + kRows * kPitch, depth, kColumns, kColumns, kDepth,
                             TileB::kLineElements, Swizzle::k64);
  Launch one = how;
  one.grid.x = 1;
  launch<multiply<kBug>>(one, nullptr, a, b, out);
};

const std::vector<Entry> kernels = {
    {"product", start_product<Bug::kRight>},
    {"released_before_wgmma", start_product<Bug::kReleasedEarly>},
    {"tile_short", start_product<Bug::kTileShort>},
    {"tail_unmasked", start_product<Bug::kTailUnmasked>},
    {"other_swizzle", start_product<Bug::kOtherSwizzle>},
    {"half_stride", start_product<Bug::kHalfStride>},
    {"short_leading", start_product<Bug::kShortLeading>},
    {"far_leading", start_product<Bug::kFarLeading>},
};

}  // namespace planted
