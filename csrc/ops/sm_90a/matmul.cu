// Products of matrices on Hopper's tensor cores: kernels, and which products they take.
// ../matmul.cu has the launcher.
//
// Architectures: 9.0a
#include <limits>
#include <optional>

#include "diglot/launch/dispatch.h"
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

constexpr int64_t kUnit = 16;  // bytes: of TMA's addresses and strides

// A matrix, and a batch of them, as TMA takes it. "Outer" is the dimension that is not contiguous.
struct TmaMatrix {
  DType dtype;
  Address<void> data;
  int64_t inner, outer, outer_stride;  // elements
  int64_t batch[kTmaBatchRank], batch_stride[kTmaBatchRank];

  TensorDescription described(void* address, uint32_t box_inner, uint32_t box_outer,
                              Swizzle swizzle) const {
    const auto bytes = [&](int64_t stride) {
      return static_cast<uint64_t>(stride * size_of(dtype));
    };
    const auto size = [](int64_t count) { return static_cast<uint64_t>(count); };
    return {dtype == DType::kFloat16 ? TensorType::kFloat16 : TensorType::kBfloat16,
            address,
            {size(inner), size(outer), size(batch[0]), size(batch[1])},
            {bytes(outer_stride), bytes(batch_stride[0]), bytes(batch_stride[1])},
            {box_inner, box_outer, 1, 1},
            {},
            swizzle,
            L2Promotion::k256};
  }

  // Encoded at each launch.
  auto encoded(uint32_t box_inner, uint32_t box_outer, Swizzle swizzle) const {
    return [=, matrix = *this](const Arguments& now) {
      return tensor_map(matrix.described(matrix.data(now), box_inner, box_outer, swizzle));
    };
  }

  TmaBatch steps() const { return {{batch[0] > 1, batch[1] > 1}}; }
};

bool is_stride(int64_t stride, int element_bytes) {
  return stride > 0 && stride * element_bytes % kUnit == 0 && stride * element_bytes < 1ll << 40;
}

// Nothing if TMA cannot take it. Array `array` of the batch's layout has the batch's strides.
std::optional<TmaMatrix> tma_matrix(const Operand& operand, int64_t inner, int64_t inner_stride,
                                    int64_t outer, int64_t outer_stride, const Layout<3>& batches,
                                    int array) {
  const int bytes = size_of(operand.dtype);
  if (!operand.is_aligned(kUnit) || batches.rank > kTmaBatchRank) return {};
  if (inner_stride != 1 && inner > 1) return {};
  const int64_t unused = (inner * bytes + kUnit - 1) / kUnit * kUnit / bytes;
  TmaMatrix found{
      operand.dtype, operand.as<void>(), inner, outer, outer == 1 ? unused : outer_stride, {}, {}};
  for (int d = 0; d < kTmaBatchRank; ++d) {
    const bool is_shared = d >= batches.rank || batches.strides[d][array] == 0;
    found.batch[d] = is_shared ? 1 : batches.sizes[d];
    found.batch_stride[d] = is_shared ? found.outer_stride : batches.strides[d][array];
    if (!is_stride(found.batch_stride[d], bytes)) return {};
  }
  return is_stride(found.outer_stride, bytes) ? std::optional(found) : std::nullopt;
}

struct Operands {
  TmaMatrix a, b;
  Major major_a, major_b;
  std::optional<TmaMatrix> c;
};

// The three operands; nothing if TMA cannot load A or B.
std::optional<Operands> operands_of(const Product& product) {
  constexpr int kC = 0, kA = 1, kB = 2;  // in the batch's layout
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  // Along K if both ways are possible.
  const auto of = [&](const Operand& operand, int64_t side, int64_t side_stride,
                      int64_t depth_stride, int array, Major& major) {
    major = Major::kK;
    auto found = tma_matrix(operand, k, depth_stride, side, side_stride, product.batches, array);
    if (!found) {
      major = Major::kMn;
      found = tma_matrix(operand, side, side_stride, k, depth_stride, product.batches, array);
    }
    return found;
  };
  Major major_a{}, major_b{};
  const auto a = of(*product.a, m, product.of_a.row, product.of_a.column, kA, major_a);
  const auto b = of(*product.b, n, product.of_b.column, product.of_b.row, kB, major_b);
  if (!a || !b) return {};
  return Operands{
      *a, *b, major_a, major_b,
      tma_matrix(*product.c, n, product.of_c.column, m, product.of_c.row, product.batches, kC)};
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
  const TmaMatrix& c = operands.c ? *operands.c : operands.a;  // not used, but a map all the same
  WgmmaProduct given{static_cast<int>((product.k + Shape::kDepth - 1) / Shape::kDepth),
                     operands.major_a,
                     operands.major_b,
                     schedule_of<Shape>(product, group),
                     batches.rank > 0 ? batches.sizes[0] : 1,
                     operands.a.steps(),
                     operands.b.steps(),
                     c.steps(),
                     operands.c.has_value(),
                     {}};
  for (int d = 0; d < batches.rank; ++d) given.batch_strides[d] = batches.strides[d][0];
  const auto map = [](const TmaMatrix& matrix, Major major, int side) {
    const bool is_along_k = major == Major::kK;
    return matrix.encoded(Shape::kLine, static_cast<uint32_t>(is_along_k ? side : Shape::kDepth),
                          Swizzle::k128);
  };
  const int64_t most = planner.device.multiprocessors();
  Launch how{static_cast<unsigned>(std::min(given.schedule.count(), most)), Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<matmul_wgmma<T, kColumns>>(
      how, map(operands.a, operands.major_a, Shape::kRows),
      map(operands.b, operands.major_b, Shape::kColumns),
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
  const std::optional<Operands> operands = operands_of(product);
  if (!operands) return false;
  const bool is_a_along_k = operands->major_a == Major::kK;
  const bool is_b_along_k = operands->major_b == Major::kK;
  // As BLAS names layouts: whether a row-major reader would call A, and B, transposed.
  planner.choose(std::string(is_a_along_k ? "N" : "T") + (is_b_along_k ? "T" : "N"),
                 {product.m, product.n, product.k, product.batches.numel}, {product.a});
  const Width width = best_width(planner, product);
  planner.plan.variant = width.variant;
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
