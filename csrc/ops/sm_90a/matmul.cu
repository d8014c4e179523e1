// Products of matrices on Hopper's tensor cores: kernels, and which products they take.
// ../matmul.cu has the launcher.
//
// Architectures: 9.0a
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/kept_text.h"
#include "diglot/launch/padded_copy.h"
#include "diglot/launch/product_splits.h"
#include "diglot/launch/products.h"
#include "diglot/products/tensor_cores.cuh"

namespace diglot {

template <typename T, int kColumns, bool kIsExchanged, bool kIsPlain>
__global__ void __launch_bounds__(WgmmaShape<T, kColumns, kIsExchanged, kIsPlain>::kThreads, 1)
    matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                 const __grid_constant__ TensorMap map_c,
                 const __grid_constant__ TensorMap map_before,
                 const __grid_constant__ Epilogue<T> epilogue, char* scratch,
                 const __grid_constant__ WgmmaProduct product) {
  multiply_by_wgmma<T, WgmmaShape<T, kColumns, kIsExchanged, kIsPlain>>(a, b, map_c, map_before,
                                                                        epilogue, scratch, product);
}

inline Numbers order_of(const WgmmaProduct& product) {
  return {{"parts", product.schedule.parts}, {"group", product.schedule.tiles.group}};
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
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  const Product::Batches& batches = product.batches;
  if (batches.rank > kTmaBatchRank) return {};
  Operands operands{
      wgmma_operand(*product.a, m, product.of_a.row, k, product.of_a.column, batches, Product::kA),
      wgmma_operand(*product.b, n, product.of_b.column, k, product.of_b.row, batches, Product::kB),
      tma_matrix(*product.c, n, product.of_c.column, m, product.of_c.row, batches, Product::kC)};
  const Operand* const before = product.around.before;
  if (before != nullptr && !before->is_aligned(kTmaUnit)) operands.c.reset();
  const int64_t copied = operands.a.copied_bytes() + operands.b.copied_bytes();
  if (copied > 0 && !is_worth_copies(device, product, copied)) return {};
  return operands;
}

// A compiled kernel, by the columns of its tiles, and how it is used.
struct Variant {
  int columns;
  bool is_exchanged;
  int parts;    // of K
  int cluster;  // blocks that share tiles of B
};

constexpr int kRows = 128, kConsumers = 2;  // of all tiles
// Nanoseconds of an H200 for a column of 128 rows: of a step at full speed, and of a tile's end.
constexpr double kStep = 2.5, kEnd = 6.5;
constexpr int kWidths[] = {64, 96, 128, 160, 192, 224, 256}, kExchangedWidths[] = {16, 32, 64};

std::string name_of(const Variant& variant) {
  const std::string columns = std::to_string(variant.columns);
  std::string name = "wgmma, tiles of ";
  name += variant.is_exchanged ? columns + "x128, exchanged" : "128x" + columns;
  if (variant.cluster > 1) name += ", in clusters";
  return variant.parts == 1 ? name : name + ", K in " + std::to_string(variant.parts) + " parts";
}

// Tiles of C, or of its transpose.
TileSchedule tiles_of(const Product& product, int64_t m, bool is_exchanged, int columns,
                      int group) {
  const auto across = is_exchanged ? product.n : m, along = is_exchanged ? m : product.n;
  return {static_cast<int>(rounded_up_quotient(across, kRows)),
          static_cast<int>(rounded_up_quotient(along, columns)), product.batches.numel, group};
}

int64_t steps_of(const Product& product) {
  return rounded_up_quotient(product.k, kLineBytes / size_of(product.c->dtype));
}

// What memory gives and takes, each element of a batch's matrices once.
int64_t memory_of(const Product& product, int64_t m) {
  const int64_t elements = m * product.k + product.k * product.n + m * product.n;
  return product.batches.numel * elements * size_of(product.c->dtype);
}

int64_t bytes_of_sums(int columns) { return int64_t{4} * kRows * columns; }

// The blocks that share tiles of B: two, where their pairs of tiles need no more rounds. The
// planner has B along K alone shared: TMA loads halves of its other tiles slower.
int cluster_of(Planner& planner, const Product& product, const Variant& variant, bool can_share) {
  constexpr int kPair = 2;
  const int64_t asked = planner.tuned(Tunable::kProductsCluster);
  if (variant.is_exchanged || variant.parts > 1 || product.m <= kRows || asked == 1) return 1;
  TileSchedule tiles = tiles_of(product, product.m, false, variant.columns, 1);
  const int64_t multiprocessors = std::max(planner.device.multiprocessors(), kPair);
  const int64_t rounds = rounded_up_quotient(tiles.count(), multiprocessors);
  tiles.rows = static_cast<int>(rounded_up_quotient(tiles.rows, kPair));
  const int64_t of_pairs = rounded_up_quotient(tiles.count(), multiprocessors / kPair);
  return asked == kPair || (can_share && of_pairs <= rounds) ? kPair : 1;
}

// The kernel and the parts of K that take the least time. `can_share`: whether clusters may pay.
Variant best_variant(Planner& planner, const Product& product, bool can_share) {
  const int64_t m = product.planned_m();
  const int64_t multiprocessors = std::max(planner.device.multiprocessors(), 1);
  const int64_t asked = planner.tuned(Tunable::kProductsColumns);
  const int64_t asked_parts =
      product.is_batch_invariant ? 1 : planner.tuned(Tunable::kProductsSplit);
  const bool is_exchanged =
      product.c->dtype != DType::kFloat32 && m <= planner.tuned(Tunable::kProductsSwap);
  std::vector<int> widths(std::begin(kWidths), std::end(kWidths));
  if (is_exchanged) widths.assign(std::begin(kExchangedWidths), std::end(kExchangedWidths));
  const bool is_asked = std::find(widths.begin(), widths.end(), asked) != widths.end();
  Variant best{};
  double least = std::numeric_limits<double>::max();
  for (const int columns : widths) {
    if (is_asked && columns != asked) continue;
    // Exchanged tiles that hold all rows read the other operand once.
    const bool holds_rows = columns >= std::min<int64_t>(m, widths.back());
    if (!is_asked && is_exchanged && !holds_rows) continue;
    const auto speed = static_cast<double>(planner.tuned(Tunable::kProductsSpeed, columns));
    const TileWork work{tiles_of(product, m, is_exchanged, columns, 1).count(),
                        static_cast<int>(steps_of(product)),
                        kStep * columns * 100 / speed,
                        kEnd * columns,
                        memory_of(product, m),
                        bytes_of_sums(columns),
                        kConsumers};
    const int parts = parts_of(work, asked_parts, multiprocessors);
    const double time = time_of(work, parts, multiprocessors);
    if (time < least) least = time, best = {columns, is_exchanged, parts, 1};
  }
  best.cluster = cluster_of(planner, product, best, can_share);
  return best;
}

template <typename T, int kColumns, bool kIsExchanged, bool kIsPlain>
void plan_wgmma(Planner& planner, const Product& product, Operands operands, const Variant& variant,
                const Address<char>& scratch) {
  using Shape = WgmmaShape<T, kColumns, kIsExchanged, kIsPlain>;
  static_assert(Shape::kRows == kRows && Shape::kDepth == kLineBytes / sizeof(T) &&
                Shape::kConsumers == kConsumers);
  if (kIsExchanged) std::swap(operands.a, operands.b);
  const Product::Batches& batches = product.batches;
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const TmaMatrix& c =
      operands.c ? *operands.c : operands.a.matrix;  // not used, but a map all the same
  TmaMatrix before = c;
  if (operands.c && product.around.before != nullptr) {
    before.data = product.around.before->as<void>();
  }
  const int cluster = variant.cluster;
  TileSchedule tiles = tiles_of(product, product.m, kIsExchanged, kColumns, group);
  tiles.rows = static_cast<int>(rounded_up_quotient(tiles.rows, cluster));
  tiles.group = static_cast<int>(rounded_up_quotient(tiles.group, cluster));
  WgmmaProduct given{operands.a.major,
                     operands.b.major,
                     {tiles, static_cast<int>(steps_of(product)), variant.parts},
                     cluster,
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
  const auto map = [](const WgmmaOperand& operand, int side, int blocks) {
    const int lines = (operand.major == Major::kK ? side : Shape::kDepth) / blocks;
    return operand.matrix.encoded(Shape::kLine, static_cast<uint32_t>(lines), Swizzle::k128);
  };
  const int64_t most = planner.device.multiprocessors() / cluster;
  Launch how{static_cast<unsigned>(std::min(given.schedule.count(), most) * cluster),
             Shape::kThreads};
  how.cluster_blocks = cluster;
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<matmul_wgmma<T, kColumns, kIsExchanged, kIsPlain>>(
      how, map(operands.a, Shape::kRows, 1), map(operands.b, Shape::kColumns, cluster),
      c.encoded(Shape::kPanel, Shape::kPanelLines, Shape::kPanelSwizzle),
      before.encoded(Shape::kPanel, Shape::kPanelLines, Shape::kPanelSwizzle),
      product.epilogue<T>(), scratch, given);
}

bool plan_on_tensor_cores(Planner& planner, const Product& product) {
  const DType dtype = product.c->dtype;
  const int64_t most = std::numeric_limits<int32_t>::max() - 1024;  // coordinates have 32 bits
  if (planner.device.architecture() != 90 || product.k == 0 || product.of_c.column != 1 ||
      (product.around.bias != nullptr && product.n > 1 && product.bias_stride() != 1) ||
      std::max({product.m, product.n, product.k, product.batches.numel}) > most ||
      (size_of(dtype) != 2 && (!product.is_tf32 || product.around.input != nullptr ||
                               product.around.activation != Activation::kNone))) {
    return false;
  }
  std::optional<Operands> operands = operands_of(planner.device, product);
  if (!operands) return false;
  const bool is_a_along_k = operands->a.major == Major::kK;
  const bool is_b_along_k = operands->b.major == Major::kK;
  // As BLAS names layouts: whether a row-major reader would call A, and B, transposed.
  choose_numbers(planner, product,
                 std::string(is_a_along_k ? "N" : "T") + (is_b_along_k ? "T" : "N"));
  const Variant variant = best_variant(planner, product, is_b_along_k);
  const int64_t parts =
      tiles_of(product, product.m, variant.is_exchanged, variant.columns, 1).count() *
      variant.parts;
  if (parts > most) return false;  // their indices have 32 bits too
  Address<char> sums;
  if (variant.parts > 1) {
    const int64_t bytes = parts * bytes_of_sums(variant.columns);
    sums = planner.need({kSplitCounterBytes + bytes, kSplitCounterBytes, Lifetime::kStream});
  }
  const char* const copies = plan_padded_copies(planner, operands->a, operands->b);
  const char* const precision = product.is_tf32 ? ", TF32" : "";
  planner.plan.variant = kept_text(name_of(variant) + precision + copies);
  const auto plan = [&](auto type) {
    using T = typename decltype(type)::type;
    const auto with = [&](auto columns, auto is_exchanged) {
      if constexpr (sizeof(T) == 2 || !is_exchanged) {
        const auto& around = product.around;
        const bool is_plain = around.input == nullptr && around.before == nullptr &&
                              around.activation == Activation::kNone;
        const auto plan = is_plain ? plan_wgmma<T, columns, is_exchanged, true>
                                   : plan_wgmma<T, columns, is_exchanged, sizeof(T) == 4>;
        plan(planner, product, *operands, variant, sums);
      }
    };
    constexpr std::bool_constant<true> kExchanged;
    constexpr std::bool_constant<false> kAsTheyAre;
    switch (variant.is_exchanged ? -variant.columns : variant.columns) {
      case -16: return with(std::integral_constant<int, 16>{}, kExchanged);
      case -32: return with(std::integral_constant<int, 32>{}, kExchanged);
      case -64: return with(std::integral_constant<int, 64>{}, kExchanged);
      case 64: return with(std::integral_constant<int, 64>{}, kAsTheyAre);
      case 96: return with(std::integral_constant<int, 96>{}, kAsTheyAre);
      case 128: return with(std::integral_constant<int, 128>{}, kAsTheyAre);
      case 160: return with(std::integral_constant<int, 160>{}, kAsTheyAre);
      case 192: return with(std::integral_constant<int, 192>{}, kAsTheyAre);
      case 224: return with(std::integral_constant<int, 224>{}, kAsTheyAre);
      default: return with(std::integral_constant<int, 256>{}, kAsTheyAre);
    }
  };
  switch (dtype) {
    case DType::kBFloat16: call_for<bfloat16>(plan); break;
    case DType::kFloat16: call_for<float16>(plan); break;
    default: call_for<float>(plan);
  }
  return true;
}

const bool is_registered = [] {
  tensor_core_planner() = plan_on_tensor_cores;
  return true;
}();

}  // namespace
