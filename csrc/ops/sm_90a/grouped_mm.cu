// Products of groups of matrices on Hopper's tensor cores: kernels, and which products they take.
// ../grouped_mm.cu has the launcher.
//
// Architectures: 9.0a
#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/grouped_products.h"
#include "diglot/launch/kept_text.h"
#include "diglot/launch/tma_matrix.h"
#include "diglot/products/grouped_tensor_cores.cuh"

namespace diglot {

template <typename T, bool kDividesK>
__global__ void __launch_bounds__(GroupShape<T, kDividesK>::kThreads, 1)
    grouped_mm_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                     const __grid_constant__ TensorMap map_c, const int32_t* offsets,
                     const __grid_constant__ Epilogue<T> epilogue,
                     const __grid_constant__ GroupedWgmma product) {
  multiply_groups_by_wgmma<T, GroupShape<T, kDividesK>>(a, b, map_c, offsets, epilogue, product);
}

}  // namespace diglot

namespace {

using namespace diglot;

struct Operands {
  TmaMatrix a, b;
  Major major_a, major_b;
  std::optional<TmaMatrix> c;
};

// The groups' matrices of an operand, as a batch.
Operand groups_of(const Operand& operand, int64_t groups) {
  Operand result = operand;
  result.rank = 1;
  result.sizes[0] = groups, result.strides[0] = GroupedProduct::group_stride(operand);
  return result;
}

// The three operands; nothing if TMA cannot load A or B.
std::optional<Operands> operands_of(const GroupedProduct& product) {
  constexpr int kC = 0, kA = 1, kB = 2;  // in the batch's layout
  const Operand of_c = groups_of(product.c, product.groups);
  const Operand of_a = groups_of(product.a, product.groups);
  const Operand of_b = groups_of(product.b, product.groups);
  const ProductBatches batches({&of_c, &of_a, &of_b, &of_c});
  const int64_t m = product.m, n = product.n, k = product.k;
  // Along K if both ways are possible.
  const auto of = [&](const Operand& operand, int64_t side, int64_t side_stride,
                      int64_t depth_stride, int array, Major& major) {
    major = Major::kK;
    auto found = tma_matrix(operand, k, depth_stride, side, side_stride, batches, array);
    if (!found) {
      major = Major::kMn;
      found = tma_matrix(operand, side, side_stride, k, depth_stride, batches, array);
    }
    return found;
  };
  const auto strides = [](const Operand& operand) { return GroupedProduct::strides_of(operand); };
  Major major_a{}, major_b{};
  const auto a = of(product.a, m, strides(product.a).row, strides(product.a).column, kA, major_a);
  const auto b = of(product.b, n, strides(product.b).column, strides(product.b).row, kB, major_b);
  if (!a || !b) return {};
  const MatrixStrides c = strides(product.c);
  return Operands{*a, *b, major_a, major_b,
                  tma_matrix(product.c, n, c.column, m, c.row, batches, kC)};
}

// How many rows of C a tile has at most, and how many of them TMA moves at once.
constexpr int kTileColumns = 128;
struct TileRows {
  int most, box;
};

// The host knows the mean size of a group of rows alone. Tiles of short groups have few rows, and
// room for longer ones.
TileRows rows_of(Planner& planner, const GroupedProduct& product) {
  const int64_t groups = product.divides_k ? 1 : product.groups;
  const int fewest = product.divides_k ? 64 : 16;
  const auto mean = static_cast<int>((product.m + groups - 1) / groups);
  const auto asked = static_cast<int>(planner.tuned(Tunable::kProductsColumns));
  const auto rounded = [&](int rows) { return std::min(product_rows(rows, fewest), 256); };
  const int most = asked > 0 ? rounded(asked) : std::max(rounded(mean), 64);
  return {most, std::min({most, rounded(mean), 64})};
}

template <typename T, bool kDividesK>
void plan_wgmma(Planner& planner, const GroupedProduct& product, const Operands& operands,
                TileRows rows) {
  using Shape = GroupShape<T, kDividesK>;
  static_assert(kTileColumns == Shape::kColumnsOfC);
  const auto height = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const TmaMatrix& c = operands.c ? *operands.c : operands.a;  // not used, but a map all the same
  // Whether a contiguous dimension of a matrix is divided, at which TMA takes no odd places.
  const bool is_inner = product.divides_k
                            ? operands.major_a == Major::kK || operands.major_b == Major::kK
                            : operands.major_a == Major::kMn;
  // Of rows that are contiguous, TMA loads whole panels.
  if (operands.major_a == Major::kMn) rows = {std::max(rows.most, Shape::kLine), Shape::kLine};
  const int stage = Shape::kBytesA + rows.most * GroupedWgmma::kLineBytes;
  const GroupedWgmma given{operands.major_b,
                           operands.major_a,
                           product.schedule(rows.most, kTileColumns, height,
                                            is_inner ? kTmaUnit / static_cast<int>(sizeof(T)) : 1),
                           static_cast<int>(product.m),
                           static_cast<int>(product.k),
                           operands.b.steps().step[0],
                           operands.c.has_value(),
                           product.group_stride(product.c),
                           rows.most,
                           rows.box,
                           std::min(Shape::kStages, Shape::kRingBytes / stage),
                           stage};
  const auto map = [](const TmaMatrix& matrix, Major major, int side) {
    return matrix.encoded(Shape::kLine,
                          static_cast<uint32_t>(major == Major::kK ? side : Shape::kDepth),
                          Swizzle::k128);
  };
  const int64_t most = planner.device.multiprocessors();
  Launch how{static_cast<unsigned>(std::min(given.schedule.most(), most)), Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<grouped_mm_wgmma<T, kDividesK>>(
      how, map(operands.b, operands.major_b, Shape::kRows),
      map(operands.a, operands.major_a, rows.box),
      c.encoded(Shape::kPanel, static_cast<uint32_t>(rows.box), Shape::kPanelSwizzle),
      product.offsets->as<const int32_t>(), product.epilogue<T>(), given);
}

bool plan_on_tensor_cores(Planner& planner, const GroupedProduct& product) {
  const DType dtype = product.c.dtype;
  const int64_t most = std::numeric_limits<int32_t>::max() - 1024;  // coordinates have 32 bits
  if (planner.device.architecture() != 90 || product.k == 0 || product.groups == 0 ||
      std::max({product.m, product.n, product.k, product.groups}) > most ||
      (dtype != DType::kBFloat16 && dtype != DType::kFloat16)) {
    return false;
  }
  const std::optional<Operands> operands = operands_of(product);
  if (!operands) return false;
  const bool is_a_along_k = operands->major_a == Major::kK;
  const bool is_b_along_k = operands->major_b == Major::kK;
  planner.choose(std::string(is_a_along_k ? "N" : "T") + (is_b_along_k ? "T" : "N"),
                 {product.m, product.n, product.k, product.groups}, {&product.a});
  const TileRows rows = rows_of(planner, product);
  if (product.schedule(rows.most, kTileColumns, 1).most() > most) return false;
  planner.plan.variant =
      kept_text("wgmma, tiles of " + std::to_string(rows.most) + "x128, exchanged");
  const auto plan = [&](auto type) {
    using T = typename decltype(type)::type;
    product.divides_k ? plan_wgmma<T, true>(planner, product, *operands, rows)
                      : plan_wgmma<T, false>(planner, product, *operands, rows);
  };
  dtype == DType::kBFloat16 ? call_for<bfloat16>(plan) : call_for<float16>(plan);
  return true;
}

const bool is_registered = [] {
  grouped_tensor_core_planner() = plan_on_tensor_cores;
  return true;
}();

}  // namespace
