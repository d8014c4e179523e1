// Products of 16-bit matrices into a float32 C, on Hopper's tensor cores: kernels, and which
// products they take. ../matmul.cu has the launcher.
//
// Architectures: 9.0a
#include <limits>
#include <optional>
#include <string>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/kept_text.h"
#include "diglot/launch/padded_copy.h"
#include "diglot/launch/product_splits.h"
#include "diglot/launch/products.h"
#include "diglot/products/tensor_cores.cuh"

namespace diglot {

template <typename T, int kColumns>
__global__ void __launch_bounds__(WideShape<T, kColumns>::kThreads, 1)
    matmul_wide_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                      const __grid_constant__ TensorMap map_c,
                      const __grid_constant__ Epilogue<float> epilogue, char* scratch,
                      const __grid_constant__ WgmmaProduct product) {
  multiply_by_wgmma<T, WideShape<T, kColumns>>(a, b, map_c, map_c, epilogue, scratch, product);
}

}  // namespace diglot

namespace {

using namespace diglot;

struct Operands {
  WgmmaOperand a, b;
  std::optional<TmaMatrix> c;  // if TMA can store it
};

// A kernel's tiles of 128 rows, and the parts of K.
struct Variant {
  int columns, parts;
};

// As of sm_90a/matmul.cu: nanoseconds of an H200 for a column of a tile, of a step at full speed,
// and of a tile's end. C has twice the bytes here.
constexpr double kStep = 2.5, kEnd = 20;
constexpr int kWidths[] = {64, 128, 256}, kRows = 128;

TileSchedule tiles_of(const Product& product, int64_t m, int columns, int group) {
  return {static_cast<int>(rounded_up_quotient(m, kRows)),
          static_cast<int>(rounded_up_quotient(product.n, columns)), product.batches.numel, group};
}

int steps_of(const Product& product) {
  return static_cast<int>(rounded_up_quotient(product.k, kLineBytes / size_of(product.a->dtype)));
}

int64_t bytes_of_sums(int columns) { return int64_t{4} * kRows * columns; }

// The tiles and the parts of K that take the least time.
Variant best_variant(Planner& planner, const Product& product) {
  const int64_t m = product.planned_m();
  const int64_t multiprocessors = std::max(planner.device.multiprocessors(), 1);
  const int64_t asked_parts =
      product.is_batch_invariant ? 1 : planner.tuned(Tunable::kProductsSplit);
  const int64_t asked = planner.tuned(Tunable::kProductsColumns);
  const int64_t read = (m + product.n) * product.k * size_of(product.a->dtype);
  const int64_t written = m * product.n * size_of(product.c->dtype);
  Variant best{};
  double least = std::numeric_limits<double>::max();
  for (const int columns : kWidths) {
    const auto speed = static_cast<double>(planner.tuned(Tunable::kProductsSpeed, columns));
    const TileWork work{tiles_of(product, m, columns, 1).count(),
                        steps_of(product),
                        kStep * columns * 100 / speed,
                        kEnd * columns,
                        product.batches.numel * (read + written),
                        bytes_of_sums(columns),
                        kRows / 64};
    const int parts = parts_of(work, asked_parts, multiprocessors);
    const double time = time_of(work, parts, multiprocessors);
    if (columns == asked) return {columns, parts};
    if (time < least) least = time, best = {columns, parts};
  }
  return best;
}

template <typename T, int kColumns>
void plan_wgmma(Planner& planner, const Product& product, const Operands& operands, int parts,
                const Address<char>& scratch) {
  using Shape = WideShape<T, kColumns>;
  const Product::Batches& batches = product.batches;
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const TmaMatrix& c =
      operands.c ? *operands.c : operands.a.matrix;  // not used, but a map all the same
  WgmmaProduct given{operands.a.major,
                     operands.b.major,
                     {tiles_of(product, product.m, kColumns, group), steps_of(product), parts},
                     /*cluster=*/1,
                     /*meets=*/false,
                     batches.rank > 0 ? batches.sizes[0] : 1,
                     operands.a.matrix.steps(),
                     operands.b.matrix.steps(),
                     c.steps(),
                     operands.c.has_value(),
                     {},
                     {}};
  for (int d = 0; d < batches.rank; ++d) {
    given.batch_strides[d] = batches.strides[d][Product::kC];
    given.input_batch_strides[d] = batches.strides[d][Product::kInput];
  }
  const auto map = [](const WgmmaOperand& operand, int side) {
    const int lines = operand.major == Major::kK ? side : Shape::kDepth;
    return operand.matrix.encoded(Shape::kLine, static_cast<uint32_t>(lines), Swizzle::k128);
  };
  const int64_t most = std::max(planner.device.multiprocessors(), 1);
  Launch how{static_cast<unsigned>(std::min(given.schedule.count(), most)), Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<matmul_wide_wgmma<T, kColumns>>(
      how, map(operands.a, Shape::kRows), map(operands.b, Shape::kColumns),
      c.encoded(Shape::kPanel, Shape::kPanelLines,
                operands.c ? Shape::kPanelSwizzle : Swizzle::k64),
      product.epilogue<float>(), scratch, given);
}

bool plan_on_tensor_cores(Planner& planner, const Product& product) {
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  const Product::Batches& batches = product.batches;
  const int64_t most = std::numeric_limits<int32_t>::max() - 1024;  // coordinates have 32 bits
  if (planner.device.architecture() != 90 || k == 0 || product.of_c.column != 1 ||
      batches.rank > kTmaBatchRank || std::max({m, n, k, batches.numel}) > most) {
    return false;
  }
  Operands operands{
      wgmma_operand(*product.a, m, product.of_a.row, k, product.of_a.column, batches, Product::kA),
      wgmma_operand(*product.b, n, product.of_b.column, k, product.of_b.row, batches, Product::kB),
      tma_matrix(*product.c, n, product.of_c.column, m, product.of_c.row, batches, Product::kC)};
  const int64_t copied = operands.a.copied_bytes() + operands.b.copied_bytes();
  if (copied > 0 && !is_worth_copies(planner.device, product, copied)) return false;
  choose_numbers(planner, product,
                 std::string(operands.a.major == Major::kK ? "N" : "T") +
                     (operands.b.major == Major::kK ? "T" : "N"));
  const Variant variant = best_variant(planner, product);
  const auto [columns, parts] = variant;
  const int64_t count = tiles_of(product, m, columns, 1).count() * parts;
  if (count > most) return false;  // their indices have 32 bits too
  Address<char> sums;
  if (parts > 1) {
    const int64_t bytes = count * bytes_of_sums(columns);
    sums = planner.need({kSplitCounterBytes + bytes, kSplitCounterBytes, Lifetime::kStream});
  }
  const std::string name = "wgmma, float32 from tiles of 128x" + std::to_string(columns) +
                           (parts > 1 ? ", K in " + std::to_string(parts) + " parts" : "");
  planner.plan.variant = kept_text(name + plan_padded_copies(planner, operands.a, operands.b));
  const auto plan = [&](auto type) {
    using T = typename decltype(type)::type;
    const auto with = variant.columns == 64    ? plan_wgmma<T, 64>
                      : variant.columns == 128 ? plan_wgmma<T, 128>
                                               : plan_wgmma<T, 256>;
    with(planner, product, operands, variant.parts, sums);
  };
  if (product.a->dtype == DType::kBFloat16) {
    call_for<bfloat16>(plan);
  } else {
    call_for<float16>(plan);
  }
  return true;
}

const bool is_registered = [] {
  wide_planner() = plan_on_tensor_cores;
  return true;
}();

}  // namespace
