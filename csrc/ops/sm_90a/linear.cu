// The gradients of a linear layer's weight and bias, by one product on Hopper's tensor cores: the
// kernel, and which products it takes. ../linear.cu has the launcher.
//
// Architectures: 9.0a
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/kept_text.h"
#include "diglot/launch/product_splits.h"
#include "diglot/launch/products.h"
#include "diglot/launch/wgmma_product.h"

namespace diglot {

// One width, the planner's choice for most layers: each would be a kernel more for each type.
constexpr int kSummedColumns = 256;
template <typename T>
using SummedTile = SummedShape<T, kSummedColumns>;

template <typename T>
__global__ void __launch_bounds__(SummedTile<T>::kThreads, 1)
    matmul_summed_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                        const __grid_constant__ TensorMap map_c,
                        const __grid_constant__ Epilogue<T> epilogue, T* sums_of_rows,
                        char* scratch, const __grid_constant__ WgmmaProduct product) {
  multiply_and_sum_rows<T, SummedTile<T>>(a, b, map_c, epilogue, sums_of_rows, scratch, product);
}

}  // namespace diglot

namespace {

using namespace diglot;

constexpr int kRows = 128;
constexpr int64_t kTwoLaunches = 0, kPlanner = 2;  // values of `row_sums`

TileSchedule tiles_of(const Product& product, int group) {
  return {static_cast<int>(rounded_up_quotient(product.m, kRows)),
          static_cast<int>(rounded_up_quotient(product.n, kSummedColumns)), 1, group};
}

int steps_of(const Product& product) {
  return static_cast<int>(rounded_up_quotient(product.k, kLineBytes / size_of(product.a->dtype)));
}

// What a part of a tile leaves in scratch: its sums, and those of its rows of A.
template <typename T>
constexpr int64_t kBytesOfSums = int64_t{4} * SummedTile<T>::kConsumers * kWarpgroupThreads *
                                 (SummedTile<T>::kSums + RowSums<T, kMmaType<T>>::kSums);

struct Choice {
  int parts;    // of K
  double time;  // nanoseconds, by the model
};

// The parts of K that take the least time.
Choice best_parts(Planner& planner, const Product& product) {
  const int64_t asked = product.is_batch_invariant ? 1 : planner.tuned(Tunable::kProductsSplit);
  const auto speed = static_cast<double>(planner.tuned(Tunable::kProductsSpeed, kSummedColumns));
  const int64_t elements = product.m * product.k + product.k * product.n + product.m * product.n;
  const TileWork work{tiles_of(product, 1).count(),
                      steps_of(product),
                      kWgmmaStep * kSummedColumns * 100 / speed,
                      kWgmmaEnd * kSummedColumns,
                      elements * size_of(product.c->dtype),
                      kBytesOfSums<bfloat16>,
                      SummedTile<bfloat16>::kConsumers};
  const int multiprocessors = std::max(planner.device.multiprocessors(), 1);
  const int parts = parts_of(work, asked, multiprocessors);
  return {parts, time_of(work, parts, multiprocessors)};
}

// Nanoseconds of a launch that sums A's rows, beside those of its bytes.
constexpr double kSumLaunch = 4000;

// Whether one launch takes less time than a product and a sum of A's rows behind it. Where bits
// must not depend on rows, nor on which gradients a call needs, there are two.
bool saves_time(Planner& planner, const Product& product, double time) {
  if (product.is_batch_invariant || tensor_core_model() == nullptr) return false;
  const auto bytes = static_cast<double>(product.m * product.k * size_of(product.a->dtype));
  return time < tensor_core_model()(planner, product) + kSumLaunch + bytes / kFromMemory;
}

template <typename T>
void plan_wgmma(Planner& planner, const Product& product, const WgmmaOperands& operands, int parts,
                const Address<char>& scratch) {
  using Shape = SummedTile<T>;
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const WgmmaProduct given =
      wgmma_product(product, operands, {tiles_of(product, group), steps_of(product), parts});
  const auto map = [](const WgmmaOperand& operand) {
    return operand.matrix.encoded(Shape::kLine, Shape::kDepth, Swizzle::k128);
  };
  const int64_t most = std::max(planner.device.multiprocessors(), 1);
  Launch how{static_cast<unsigned>(std::min(given.schedule.count(), most)), Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<matmul_summed_wgmma<T>>(
      how, map(operands.a), map(operands.b),
      operands.stored().encoded(Shape::kPanel, Shape::kPanelLines, Shape::kPanelSwizzle),
      product.epilogue<T>(), product.sums_of_rows->as<T>(), scratch, given);
}

bool plan_with_row_sums(Planner& planner, const Product& product) {
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  const int64_t most = std::numeric_limits<int32_t>::max() - 1024;  // coordinates have 32 bits
  if (planner.device.architecture() != 90 || k == 0 || product.of_c.column != 1 ||
      size_of(product.c->dtype) != 2 || product.batches.rank > 0 || std::max({m, n, k}) > most) {
    return false;
  }
  std::optional<WgmmaOperands> operands = wgmma_operands(planner.device, product);
  if (!operands || operands->a.major == Major::kK || operands->b.major == Major::kK) return false;
  choose_numbers(planner, product, "TN");
  const int64_t asked = planner.tuned(Tunable::kProductsRowSums);
  if (asked == kTwoLaunches) return false;
  const auto [parts, time] = best_parts(planner, product);
  if (asked == kPlanner && !saves_time(planner, product, time)) return false;
  const int64_t count = tiles_of(product, 1).count() * parts;
  if (count > most) return false;  // their indices have 32 bits too
  Address<char> sums;
  if (parts > 1) {
    const int64_t bytes = count * kBytesOfSums<bfloat16>;
    sums = planner.need({kSplitCounterBytes + bytes, kSplitCounterBytes, Lifetime::kStream});
  }
  std::string name = "wgmma, tiles of 128x" + std::to_string(kSummedColumns);
  if (parts > 1) name += ", K in " + std::to_string(parts) + " parts";
  name += ", sums of rows";
  planner.plan.variant = kept_text(name + plan_padded_copies(planner, operands->a, operands->b));
  const auto plan = [&](auto type) {
    plan_wgmma<typename decltype(type)::type>(planner, product, *operands, parts, sums);
  };
  if (product.c->dtype == DType::kBFloat16) {
    call_for<bfloat16>(plan);
  } else {
    call_for<float16>(plan);
  }
  return true;
}

const bool is_registered = [] {
  row_sums_planner() = plan_with_row_sums;
  return true;
}();

}  // namespace
