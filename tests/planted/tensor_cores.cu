// Products on tensor cores, for tests/test_product_mutations.py, which gives the header that this
// includes some faults. `in` holds bfloat16: A of kM x kK by rows, and then B of kK x kN by rows.
#include "diglot/products/tensor_cores.cuh"

#include <algorithm>
#include <vector>

#include "runner.h"

namespace planted {

using namespace diglot;

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    multiply(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
             const __grid_constant__ TensorMap map_c, const __grid_constant__ TensorMap map_before,
             const __grid_constant__ Epilogue<bfloat16> epilogue, char* scratch,
             const __grid_constant__ WgmmaProduct product) {
  multiply_by_wgmma<bfloat16, Shape>(a, b, map_c, map_before, epilogue, scratch, product);
}

TensorMap map_of(const void* matrix, int rows, int columns, int box_columns, int box_rows,
                 Swizzle swizzle) {
  const auto width = static_cast<uint64_t>(columns), bytes = width * sizeof(bfloat16);
  return tensor_map({TensorType::kBfloat16,
                     matrix,
                     {width, static_cast<uint64_t>(rows), 1, 1},
                     {bytes, bytes, bytes},
                     {static_cast<uint32_t>(box_columns), static_cast<uint32_t>(box_rows), 1, 1},
                     {},
                     swizzle});
}

// Twice, with the same scratch: what the first launch leaves there is what the second finds.
// With kHasAround, A's first row is a bias, and its first columns are the input, with beta = -2.
// With kMeets, clusters have the parts of tiles. Otherwise kSharingRows x kSharingColumns blocks
// share tiles. With a kHelpCost, the last round has helpers.
template <typename Shape, int kM, int kN, int kK, int kParts, unsigned kBlocks,
          bool kHasAround = false, bool kMeets = false, int kSharingRows = 1,
          int kSharingColumns = 1, int kHelpCost = 0>
constexpr Start start_product = [](const Launch&, const float* in, float* out) {
  constexpr bool kIsExchanged = Shape::kIsExchanged;
  constexpr int kRows = kIsExchanged ? kN : kM, kColumns = kIsExchanged ? kM : kN;  // of tiles
  const auto* const beside = kHasAround ? reinterpret_cast<const bfloat16*>(in) : nullptr;
  Epilogue<bfloat16> epilogue{kM, kN, 1, -2, beside, 1, beside, {kK, 1}};
  if (kHasAround) epilogue.activation = Activation::kRelu;
  epilogue.c = reinterpret_cast<bfloat16*>(out), epilogue.strides = {kN, 1};
  const Sharing sharing{kSharingRows, kSharingColumns};
  constexpr int kClusterRows = kSharingRows * Shape::kRows;
  constexpr int kClusterColumns = kSharingColumns * Shape::kColumns;
  const TileSchedule tiles{(kRows + kClusterRows - 1) / kClusterRows,
                           (kColumns + kClusterColumns - 1) / kClusterColumns, 1, 2};
  constexpr int kSteps = (kK + Shape::kDepth - 1) / Shape::kDepth;
  const HelpedRound last =
      kHelpCost > 0 ? HelpedRound::of(tiles.count(), kSteps, kBlocks, kHelpCost) : HelpedRound{};
  const WgmmaProduct product{kIsExchanged ? Major::kMn : Major::kK,
                             kIsExchanged ? Major::kK : Major::kMn,
                             {tiles, kSteps, kParts, last},
                             sharing,
                             kMeets,
                             1,
                             {},
                             {},
                             {},
                             true,
                             {},
                             {}};
  const int of_a = kIsExchanged ? Shape::kColumns / kSharingRows : Shape::kRows / kSharingColumns;
  const int of_b = Shape::kDepth / (kIsExchanged ? kSharingColumns : kSharingRows);
  const TensorMap a = map_of(in, kM, kK, 64, of_a, Swizzle::k128);
  const TensorMap b = map_of(in + kM * kK / 2, kK, kN, 64, of_b, Swizzle::k128);
  const int64_t slots = kHelpCost > 0 ? last.slots() : product.schedule.count();
  std::vector<float> scratch(kSplitCounters + slots * Shape::kRows * Shape::kColumns);
  const auto range = [](const void* begin, int64_t bytes) {
    return interpreter::Range{static_cast<const char*>(begin),
                              static_cast<const char*>(begin) + bytes};
  };
  const interpreter::Arguments scope(
      {range(in, 2 * kK * (kM + kN)), range(out, 2 * kM * kN),
       range(scratch.data(), 4 * static_cast<int64_t>(scratch.size()))});
  Launch how{kBlocks, Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  how.cluster_blocks = kMeets ? kParts : sharing.blocks();
  for (int launches = 0; launches < 2; ++launches) {
    std::fill_n(out, kM * kN / 2, -1.0f);
    const TensorMap c =
        map_of(out, kM, kN, Shape::kPanel, Shape::kPanelLines, Shape::kPanelSwizzle);
    launch<multiply<Shape>>(how, nullptr, kIsExchanged ? b : a, kIsExchanged ? a : b, c, c,
                            epilogue, reinterpret_cast<char*>(scratch.data()), product);
  }
};

using Summed = SummedShape<bfloat16, 64>;
__global__ void __launch_bounds__(Summed::kThreads, 1)
    multiply_and_sum(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                     const __grid_constant__ TensorMap map_c,
                     const __grid_constant__ Epilogue<bfloat16> epilogue, bfloat16* sums_of_rows,
                     char* scratch, const __grid_constant__ WgmmaProduct product) {
  multiply_and_sum_rows<bfloat16, Summed>(a, b, map_c, epilogue, sums_of_rows, scratch, product);
}

// With the sums of A's rows, which lie behind C. `in` holds the transpose of A, kK x kM, by rows.
template <int kM, int kN, int kK, int kParts, unsigned kBlocks>
constexpr Start start_sums = [](const Launch&, const float* in, float* out) {
  auto* const c = reinterpret_cast<bfloat16*>(out);
  Epilogue<bfloat16> epilogue{kM, kN, 1, 1, nullptr, 0, nullptr, {}};
  epilogue.c = c, epilogue.strides = {kN, 1};
  const TileSchedule tiles{(kM + Summed::kRows - 1) / Summed::kRows,
                           (kN + Summed::kColumns - 1) / Summed::kColumns, 1, 2};
  const WgmmaProduct product{Major::kMn,
                             Major::kMn,
                             {tiles, (kK + Summed::kDepth - 1) / Summed::kDepth, kParts},
                             /*sharing=*/{},
                             /*meets=*/false,
                             1,
                             {},
                             {},
                             {},
                             true,
                             {},
                             {}};
  const TensorMap a = map_of(in, kK, kM, 64, Summed::kDepth, Swizzle::k128);
  const TensorMap b = map_of(in + kM * kK / 2, kK, kN, 64, Summed::kDepth, Swizzle::k128);
  std::vector<float> scratch(kSplitCounters +
                             product.schedule.count() * Summed::kRows * (Summed::kColumns + 8));
  const auto range = [](const void* begin, int64_t bytes) {
    return interpreter::Range{static_cast<const char*>(begin),
                              static_cast<const char*>(begin) + bytes};
  };
  const interpreter::Arguments scope(
      {range(in, 2 * kK * (kM + kN)), range(out, 2 * kM * (kN + 1)),
       range(scratch.data(), 4 * static_cast<int64_t>(scratch.size()))});
  Launch how{kBlocks, Summed::kThreads};
  how.shared_bytes = sizeof(Summed::Shared);
  for (int launches = 0; launches < 2; ++launches) {
    std::fill_n(out, kM * (kN + 1) / 2, -1.0f);
    const TensorMap map_c =
        map_of(out, kM, kN, Summed::kPanel, Summed::kPanelLines, Summed::kPanelSwizzle);
    launch<multiply_and_sum>(how, nullptr, a, b, map_c, epilogue, c + kM * kN,
                             reinterpret_cast<char*>(scratch.data()), product);
  }
};

const std::vector<Entry> kernels = {
    // Tiles beyond edges, more steps than stages.
    {"136x136x616", start_product<WgmmaShape<bfloat16, 64>, 136, 136, 616, 1, 2>},
    {"136x136x152", start_product<WgmmaShape<bfloat16, 128>, 136, 136, 152, 1, 2, true>},
    {"40x136x1160", start_product<WgmmaShape<bfloat16, 32, true>, 40, 136, 1160, 3, 5>},
    {"136x136x680", start_product<WgmmaShape<bfloat16, 128>, 136, 136, 680, 3, 12, false, true>},
    // A cluster of 4 x 2 blocks has ten tiles, the last of them beyond edges.
    {"72x264x616",
     start_product<WgmmaShape<bfloat16, 64, true>, 72, 264, 616, 1, 8, false, false, 4, 2>},
    // Five blocks have three tiles, and two of them help. The second tile has both as helpers.
    {"264x64x616",
     start_product<WgmmaShape<bfloat16, 64>, 264, 64, 616, 1, 5, false, false, 1, 1, 1>},
    // Three tiles for each block, so its consumers have two and one.
    {"136x264x392",
     start_product<WgmmaShape<bfloat16, 128, false, true, true>, 136, 264, 392, 1, 2>},
    // One block has six tiles, and sums the rows of two. Four blocks have two parts of each.
    {"136x136x328", start_sums<136, 136, 328, 1, 1>},
    {"136x136x456", start_sums<136, 136, 456, 2, 4>},
};

}  // namespace planted
