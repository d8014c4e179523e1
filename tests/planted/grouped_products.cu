// Products of groups on tensor cores, for tests/test_grouped_mutations.py, which gives the headers
// that this includes some faults. `in` holds bfloat16, A and then B, and behind them the offsets.
#include "diglot/products/grouped_tensor_cores.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

template <bool kDividesK>
__global__ void __launch_bounds__(GroupShape<bfloat16, kDividesK>::kThreads, 1)
    multiply(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
             const __grid_constant__ TensorMap map_c, const int32_t* offsets,
             const __grid_constant__ Epilogue<bfloat16> epilogue,
             const __grid_constant__ GroupedWgmma product) {
  multiply_groups_by_wgmma<bfloat16, GroupShape<bfloat16, kDividesK>>(a, b, map_c, offsets,
                                                                      epilogue, product);
}

TensorMap map_of(const void* matrices, int count, int rows, int columns, uint32_t box_columns,
                 uint32_t box_rows, Swizzle swizzle) {
  const auto width = static_cast<uint64_t>(columns), bytes = width * sizeof(bfloat16);
  const auto height = static_cast<uint64_t>(rows);
  return tensor_map({TensorType::kBfloat16,
                     matrices,
                     {width, height, static_cast<uint64_t>(count), 1},
                     {bytes, bytes * height, bytes * height},
                     {box_columns, box_rows, 1, 1},
                     {},
                     swizzle});
}

constexpr int kGroups = 5, kRows = 200, kColumns = 136, kDepth = 136;

// Rows are divided: `rows` (kRows, kDepth), and `columns` (kGroups, kDepth, kColumns). Or K is, of
// the size kRows: `rows` (kRows, kDepth) holds the transpose, or (kDepth, kRows) itself if
// kIsAlongK, and `columns` is (kRows, kColumns).
template <bool kDividesK, bool kIsAlongK = !kDividesK>
constexpr Start start_product = [](const Launch&, const float* in, float* out) {
  using Shape = GroupShape<bfloat16, kDividesK>;
  const int m = kDividesK ? kDepth : kRows, matrices = kDividesK ? 1 : kGroups;
  const int depth = kDividesK ? kRows : kDepth;
  const auto* const rows = reinterpret_cast<const bfloat16*>(in);
  const bfloat16* const columns = rows + kRows * kDepth;
  const auto* const offsets =
      reinterpret_cast<const int32_t*>(columns + matrices * depth * kColumns);
  Epilogue<bfloat16> epilogue{m, kColumns, 1, 1};
  epilogue.c = reinterpret_cast<bfloat16*>(out), epilogue.strides = {kColumns, 1};
  constexpr int kAlign = kDividesK && kIsAlongK ? 8 : 1;
  constexpr int kWidth = kDividesK ? 128 : 64, kBox = kDividesK ? 64 : 16, kStages = 2, kTiles = 2;
  const GroupSchedule schedule{kGroups, kRows, kDividesK ? 0 : kWidth, kTiles, kTiles, 2, kAlign};
  constexpr Major kMajorRows = kIsAlongK ? Major::kK : Major::kMn;
  const GroupedWgmma product{kDividesK ? kMajorRows : Major::kMn,
                             kDividesK ? Major::kMn : kMajorRows,
                             schedule,
                             m,
                             kColumns,
                             kDepth,
                             kDividesK ? 0 : 1,
                             true,
                             kDividesK ? m * kColumns : 0,
                             kWidth,
                             kBox,
                             kStages,
                             Shape::kBytesA + kWidth * GroupedWgmma::kLineBytes};
  Launch how{3, Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  const bool is_transposed = kDividesK && kIsAlongK;
  const auto map_of_rows =
      map_of(rows, 1, is_transposed ? kDepth : kRows, is_transposed ? kRows : kDepth, 64,
             kIsAlongK ? kDividesK ? Shape::kRows : kBox : Shape::kDepth, Swizzle::k128);
  const auto map_of_columns =
      map_of(columns, matrices, depth, kColumns, 64, Shape::kDepth, Swizzle::k128);
  launch<multiply<kDividesK>>(how, nullptr, kDividesK ? map_of_rows : map_of_columns,
                              kDividesK ? map_of_columns : map_of_rows,
                              map_of(out, kDividesK ? kGroups : 1, m, kColumns, Shape::kPanel,
                                     kDividesK ? Shape::kPanelLines : kBox, Shape::kPanelSwizzle),
                              offsets, epilogue, product);
};

const std::vector<Entry> kernels = {
    {"rows", start_product<false>},
    {"K", start_product<true>},
    {"contiguous K", start_product<true, true>},
};

}  // namespace planted
