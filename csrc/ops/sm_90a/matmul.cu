// Products of matrices on Hopper's tensor cores: kernels, and which products they take.
// ../matmul.cu has the launcher.
//
// Architectures: 9.0a
#include <limits>
#include <optional>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/kept_text.h"
#include "diglot/launch/padded_copy.h"
#include "diglot/launch/products.h"
#include "diglot/products/tensor_cores.cuh"

namespace diglot {

template <typename T, int kColumns>
__global__ void __launch_bounds__(WgmmaShape<T, kColumns>::kThreads, 1)
    matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                 const __grid_constant__ TensorMap map_c,
                 const __grid_constant__ Epilogue<T> epilogue,
                 const __grid_constant__ WgmmaProduct product) {
  multiply_by_wgmma<T, WgmmaShape<T, kColumns>>(a, b, map_c, epilogue, product);
}

}  // namespace diglot

namespace {

using namespace diglot;

struct Operands {
  WgmmaOperand a, b;
  std::optional<TmaMatrix> c;
};

// The three operands; nothing if TMA cannot load A or B, and copies do not pay.
std::optional<Operands> operands_of(const Device& device, const Product& product) {
  constexpr int kC = 0, kA = 1, kB = 2;  // in the batch's layout
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  const Layout<3>& batches = product.batches;
  if (batches.rank > kTmaBatchRank) return {};
  const Operands operands{
      wgmma_operand(*product.a, m, product.of_a.row, k, product.of_a.column, batches, kA),
      wgmma_operand(*product.b, n, product.of_b.column, k, product.of_b.row, batches, kB),
      tma_matrix(*product.c, n, product.of_c.column, m, product.of_c.row, batches, kC)};
  const int64_t copied = operands.a.copied_bytes() + operands.b.copied_bytes();
  if (copied > 0 && !is_worth_copies(device, product, copied)) return {};
  return operands;
}

template <typename Shape>
TileSchedule schedule_of(const Product& product, int group) {
  return {static_cast<int>((product.m + Shape::kRows - 1) / Shape::kRows),
          static_cast<int>((product.n + Shape::kColumns - 1) / Shape::kColumns),
          product.batches.numel, group};
}

template <typename T, int kColumns>
void plan_wgmma(Planner& planner, const Product& product, const Operands& operands) {
  using Shape = WgmmaShape<T, kColumns>;
  const Layout<3>& batches = product.batches;
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const TmaMatrix& c =
      operands.c ? *operands.c : operands.a.matrix;  // not used, but a map all the same
  WgmmaProduct given{static_cast<int>((product.k + Shape::kDepth - 1) / Shape::kDepth),
                     operands.a.major,
                     operands.b.major,
                     schedule_of<Shape>(product, group),
                     batches.rank > 0 ? batches.sizes[0] : 1,
                     operands.a.matrix.steps(),
                     operands.b.matrix.steps(),
                     c.steps(),
                     operands.c.has_value(),
                     {}};
  for (int d = 0; d < batches.rank; ++d) given.batch_strides[d] = batches.strides[d][0];
  const auto map = [](const WgmmaOperand& operand, int side) {
    const int lines = operand.major == Major::kK ? side : Shape::kDepth;
    return operand.matrix.encoded(Shape::kLine, static_cast<uint32_t>(lines), Swizzle::k128);
  };
  const int64_t most = planner.device.multiprocessors();
  Launch how{static_cast<unsigned>(std::min(given.schedule.count(), most)), Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<matmul_wgmma<T, kColumns>>(
      how, map(operands.a, Shape::kRows), map(operands.b, Shape::kColumns),
      c.encoded(Shape::kPanel, Shape::kConsumerRows, Swizzle::k64), product.epilogue<T>(), given);
}

// The compiled widths of tiles, and the variants' names.
struct Width {
  int columns;
  const char* variant;
};
constexpr Width kWidths[] = {{64, "wgmma, tiles of 128x64"},
                             {128, "wgmma, tiles of 128x128"},
                             {192, "wgmma, tiles of 128x192"},
                             {224, "wgmma, tiles of 128x224"},
                             {256, "wgmma, tiles of 128x256"}};

// The width whose tiles take the least time: rounds of tiles, times a tile's width by its speed.
Width best_width(Planner& planner, const Product& product) {
  const int64_t rows = (product.m + 127) / 128 * product.batches.numel;
  const int64_t multiprocessors = std::max(planner.device.multiprocessors(), 1);
  Width best = kWidths[0];
  const int64_t asked = planner.tuned(Tunable::kProductsColumns);
  double least = std::numeric_limits<double>::max();
  for (const Width& width : kWidths) {
    if (width.columns == asked) return width;
    const int64_t tiles = rows * ((product.n + width.columns - 1) / width.columns);
    const int64_t rounds = (tiles + multiprocessors - 1) / multiprocessors;
    const auto speed = static_cast<double>(planner.tuned(Tunable::kProductsSpeed, width.columns));
    const double time = static_cast<double>(rounds * width.columns) / speed;
    if (time < least) least = time, best = width;
  }
  return best;
}

bool plan_on_tensor_cores(Planner& planner, const Product& product) {
  const DType dtype = product.c->dtype;
  const int64_t most = std::numeric_limits<int32_t>::max() - 1024;  // coordinates have 32 bits
  if (planner.device.architecture() != 90 || product.k == 0 || product.of_c.column != 1 ||
      (product.bias != nullptr && product.n > 1 && product.bias_stride() != 1) ||
      std::max({product.m, product.n, product.k, product.batches.numel}) > most ||
      (dtype != DType::kBFloat16 && dtype != DType::kFloat16)) {
    return false;
  }
  std::optional<Operands> operands = operands_of(planner.device, product);
  if (!operands) return false;
  const bool is_a_along_k = operands->a.major == Major::kK;
  const bool is_b_along_k = operands->b.major == Major::kK;
  // As BLAS names layouts: whether a row-major reader would call A, and B, transposed.
  planner.choose(std::string(is_a_along_k ? "N" : "T") + (is_b_along_k ? "T" : "N"),
                 {product.m, product.n, product.k, product.batches.numel}, {product.a});
  const Width width = best_width(planner, product);
  const char* const copies = plan_padded_copies(planner, operands->a, operands->b);
  planner.plan.variant = kept_text(std::string(width.variant) + copies);
  const auto plan = [&](auto type) {
    using T = typename decltype(type)::type;
    switch (width.columns) {
      case 64: return plan_wgmma<T, 64>(planner, product, *operands);
      case 128: return plan_wgmma<T, 128>(planner, product, *operands);
      case 192: return plan_wgmma<T, 192>(planner, product, *operands);
      case 224: return plan_wgmma<T, 224>(planner, product, *operands);
      default: return plan_wgmma<T, 256>(planner, product, *operands);
    }
  };
  dtype == DType::kBFloat16 ? call_for<bfloat16>(plan) : call_for<float16>(plan);
  return true;
}

const bool is_registered = [] {
  tensor_core_planner() = plan_on_tensor_cores;
  return true;
}();

}  // namespace
