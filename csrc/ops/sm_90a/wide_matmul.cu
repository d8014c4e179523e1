// Products of 16-bit matrices into a float32 C, on Hopper's tensor cores: kernels, and which
// products they take. ../matmul.cu has the launcher.
//
// Architectures: 9.0a
#include <limits>
#include <optional>
#include <string>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/kept_text.h"
#include "diglot/launch/product_splits.h"
#include "diglot/launch/products.h"
#include "diglot/launch/wgmma_product.h"

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

// A kernel's tiles of 128 rows, and the parts of K.
struct Variant {
  int columns, parts;
};

constexpr double kEnd = 2 * kWgmmaEnd;  // C has twice the bytes here
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
                        kWgmmaStep * columns * 100 / speed,
                        kEnd * columns,
                        product.batches.numel * (read + written),
                        bytes_of_sums(columns),
                        kRows / 64,
                        false,
                        (kRows + columns) * static_cast<int>(kLineBytes)};
    const int parts = parts_of(work, asked_parts, multiprocessors);
    const double time = time_of(work, parts, multiprocessors);
    if (columns == asked) return {columns, parts};
    if (time < least) least = time, best = {columns, parts};
  }
  return best;
}

template <typename T, int kColumns>
void plan_wgmma(Planner& planner, const Product& product, const WgmmaOperands& operands, int parts,
                const Address<char>& scratch) {
  using Shape = WideShape<T, kColumns>;
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const SplitSchedule schedule{tiles_of(product, product.m, kColumns, group), steps_of(product),
                               parts};
  const WgmmaProduct given = wgmma_product(product, operands, schedule);
  const auto map = [](const WgmmaOperand& operand, int side) {
    const int lines = operand.major == Major::kK ? side : Shape::kDepth;
    return operand.matrix.encoded(Shape::kLine, static_cast<uint32_t>(lines), Swizzle::k128);
  };
  const int64_t most = std::max(planner.device.multiprocessors(), 1);
  Launch how{static_cast<unsigned>(std::min(given.schedule.count(), most)), Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<matmul_wide_wgmma<T, kColumns>>(
      how, map(operands.a, Shape::kRows), map(operands.b, Shape::kColumns),
      operands.stored().encoded(Shape::kPanel, Shape::kPanelLines,
                                operands.c ? Shape::kPanelSwizzle : Swizzle::k64),
      product.epilogue<float>(), scratch, given);
}

bool plan_on_tensor_cores(Planner& planner, const Product& product) {
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  const int64_t most = std::numeric_limits<int32_t>::max() - 1024;  // coordinates have 32 bits
  if (planner.device.architecture() != 90 || k == 0 || product.of_c.column != 1 ||
      std::max({m, n, k, product.batches.numel}) > most) {
    return false;
  }
  std::optional<WgmmaOperands> operands = wgmma_operands(planner.device, product);
  if (!operands) return false;
  choose_numbers(planner, product,
                 std::string(operands->a.major == Major::kK ? "N" : "T") +
                     (operands->b.major == Major::kK ? "T" : "N"));
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
  planner.plan.variant = kept_text(name + plan_padded_copies(planner, operands->a, operands->b));
  const auto plan = [&](auto type) {
    using T = typename decltype(type)::type;
    const auto with = variant.columns == 64    ? plan_wgmma<T, 64>
                      : variant.columns == 128 ? plan_wgmma<T, 128>
                                               : plan_wgmma<T, 256>;
    with(planner, product, *operands, variant.parts, sums);
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
