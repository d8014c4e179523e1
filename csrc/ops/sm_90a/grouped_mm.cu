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

// How wide tiles are at most, and how many rows of C or B^T TMA moves at once.
constexpr int kTileLength = 128;
struct TileWidth {
  int most, box;
};

// The host knows the mean size of a group of rows alone. Tiles of short groups are narrow, and have
// room for longer ones.
TileWidth width_of(Planner& planner, const GroupedProduct& product) {
  const int64_t size = product.divides_k ? product.n : (product.m - 1) / product.groups + 1;
  const int fewest = product.divides_k ? 64 : 16;
  const auto rounded = [&](int64_t width) {
    return std::min(product_width(static_cast<int>(width), fewest), 256);
  };
  const int64_t asked = planner.tuned(Tunable::kProductsColumns);
  const int most = asked > 0 ? rounded(asked) : std::max(rounded(size), 64);
  return {most, std::min({most, rounded(size), 64})};
}

template <typename T, bool kDividesK>
void plan_wgmma(Planner& planner, const GroupedProduct& product, const Operands& operands,
                const GroupSchedule& schedule, TileWidth width) {
  using Shape = GroupShape<T, kDividesK>;
  static_assert(kTileLength == Shape::kLength);
  const TmaMatrix& c = operands.c ? *operands.c : operands.a;  // not used, but a map all the same
  const bool is_exchanged = Shape::kIsExchanged;
  const TmaMatrix &a = is_exchanged ? operands.b : operands.a,
                  &b = is_exchanged ? operands.a : operands.b;
  const Major major_a = is_exchanged ? operands.major_b : operands.major_a;
  const Major major_b = is_exchanged ? operands.major_a : operands.major_b;
  // Where K is not contiguous, TMA loads whole panels.
  if (major_b == Major::kMn) width = {std::max(width.most, Shape::kLine), Shape::kLine};
  const int stage = Shape::kBytesA + width.most * GroupedWgmma::kLineBytes;
  const GroupedWgmma given{major_a,
                           major_b,
                           schedule,
                           static_cast<int>(product.m),
                           static_cast<int>(product.n),
                           static_cast<int>(product.k),
                           a.steps().step[0],
                           operands.c.has_value(),
                           product.group_stride(product.c),
                           width.most,
                           width.box,
                           std::min(Shape::kStages, Shape::kRingBytes / stage),
                           stage};
  const auto map = [](const TmaMatrix& matrix, Major major, int side) {
    return matrix.encoded(Shape::kLine,
                          static_cast<uint32_t>(major == Major::kK ? side : Shape::kDepth),
                          Swizzle::k128);
  };
  const int64_t most = planner.device.multiprocessors();
  Launch how{static_cast<unsigned>(std::min(schedule.most(), most)), Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<grouped_mm_wgmma<T, kDividesK>>(
      how, map(a, major_a, Shape::kRows), map(b, major_b, given.box),
      c.encoded(Shape::kPanel, static_cast<uint32_t>(is_exchanged ? width.box : Shape::kPanelLines),
                Shape::kPanelSwizzle),
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
  const TileWidth width = width_of(planner, product);
  const bool divides_k = product.divides_k;
  const auto height = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  // Whether a contiguous dimension of a matrix is divided, at which TMA takes no odd places.
  const bool is_inner = divides_k ? is_a_along_k || is_b_along_k : !is_a_along_k;
  const int rows = divides_k ? kTileLength : width.most;
  const int columns = divides_k ? width.most : kTileLength;
  const GroupSchedule schedule = product.schedule(
      rows, columns, height, is_inner ? static_cast<int>(kTmaUnit) / size_of(dtype) : 1);
  if (schedule.most() > most) return false;  // their indices have 32 bits too
  planner.plan.variant = kept_text("wgmma, tiles of " + std::to_string(rows) + "x" +
                                   std::to_string(columns) + (divides_k ? "" : ", exchanged"));
  const auto plan = [&](auto type) {
    using T = typename decltype(type)::type;
    divides_k ? plan_wgmma<T, true>(planner, product, *operands, schedule, width)
              : plan_wgmma<T, false>(planner, product, *operands, schedule, width);
  };
  dtype == DType::kBFloat16 ? call_for<bfloat16>(plan) : call_for<float16>(plan);
  return true;
}

const bool is_registered = [] {
  grouped_tensor_core_planner() = plan_on_tensor_cores;
  return true;
}();

}  // namespace
