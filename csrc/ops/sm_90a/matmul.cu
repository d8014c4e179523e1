// Products of matrices on Hopper's tensor cores: kernels, and which products they take.
// ../matmul.cu has the launcher.
//
// Architectures: 9.0a
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/kept_text.h"
#include "diglot/launch/product_splits.h"
#include "diglot/launch/products.h"
#include "diglot/launch/wgmma_product.h"

namespace diglot {

template <typename T, int kRows, int kColumns, bool kIsExchanged, bool kIsPlain, bool kTakesTurns,
          bool kIsActivated>
__global__ void __launch_bounds__(
    WgmmaShape<T, kColumns, kIsExchanged, kIsPlain, kTakesTurns, kRows>::kThreads, 1)
    matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                 const __grid_constant__ TensorMap map_c,
                 const __grid_constant__ TensorMap map_before,
                 const __grid_constant__ Epilogue<T> epilogue, char* scratch,
                 const __grid_constant__ WgmmaProduct product) {
  multiply_by_wgmma<
      T, WgmmaShape<T, kColumns, kIsExchanged, kIsPlain, kTakesTurns, kRows, kIsActivated>>(
      a, b, map_c, map_before, epilogue, scratch, product);
}

inline Numbers order_of(const WgmmaProduct& product) {
  const SplitSchedule& schedule = product.schedule;
  Numbers order{{"parts", schedule.parts}, {"group", schedule.tiles.group}};
  if (schedule.last.tiles > 0) {
    order.emplace_back("kept", schedule.last.kept);
    order.emplace_back("share", schedule.last.share);
    order.emplace_back("cost", schedule.last.cost);
  }
  return order;
}

}  // namespace diglot

namespace {

using namespace diglot;

// A compiled kernel, by the sides of its tiles, and how it is used.
struct Variant {
  int rows, columns;
  bool is_exchanged;
  bool takes_turns;                                  // whether consumers do
  int parts = 1;                                     // of K
  bool meets = false;                                // whether a cluster has the parts of a tile
  HelpedRound last;                                  // where it has helpers
  Sharing sharing;                                   // blocks that share tiles
  double time = std::numeric_limits<double>::max();  // nanoseconds, by the model

  // Warpgroups that multiply.
  int consumers() const { return takes_turns ? 2 : rows / 64; }
  bool is_narrow() const { return is_exchanged && columns <= 64; }
  // The thousands name its rows, of C or of its transpose, where these are not 128.
  int full_number() const { return is_exchanged ? 1000 * columns + rows : 1000 * rows + columns; }
  // Its number in tables of tunables.
  int number() const { return rows == 128 || is_narrow() ? columns : full_number(); }
  // The value of `columns` that asks for it.
  int asked_number(int64_t m) const {
    return columns < m && is_narrow() ? full_number() : number();
  }
  int most_meeting() const { return diglot::most_meeting(rows, columns, is_exchanged); }
  int64_t bytes_of_sums() const { return int64_t{4} * rows * columns; }
};

// Nanoseconds of a column of a tile's end, more than kWgmmaEnd: where more than a bias follows the
// sums, and of an activation but ReLU.
constexpr double kMoreThanBias = 7, kActivation = 11;
// Columns of tiles. Where more than a bias follows the sums, there are fewer kernels.
constexpr int kPlainWidths[] = {64, 96, 128, 160, 192, 224, 256}, kWidths[] = {64, 128, 192, 256};
// Those of exchanged tiles hold all rows of a product, so that they read the other operand once.
constexpr int kPlainExchangedWidths[] = {16, 32, 64, 160, 256}, kExchangedWidths[] = {16, 32, 64};
// Those of exchanged tiles that hold some of more than 64 rows. The first is not only for plain
// ones.
constexpr int kWidthsOfMany[] = {64, 80, 96};
constexpr int kTurnWidth = 128;  // where consumers take turns
// Rows and columns of other plain tiles.
constexpr std::pair<int, int> kOthers[] = {{64, 96},  {64, 128},  {64, 160},
                                           {64, 192}, {192, 128}, {192, 192}};
constexpr int64_t kNever = 1, kAlways = 2;  // values of `split_in_cluster` and `turns`
constexpr int64_t kByHelpers = -1;          // a value of `split`
// Blocks of a cluster that share tiles, at least: two of them gain nothing on an H200. More of them
// take this share of the time.
constexpr int kFewestSharing = 4;
constexpr double kTimeOfSharing = 0.95;

std::string name_of(const Variant& variant) {
  const std::string columns = std::to_string(variant.columns);
  const std::string rows = std::to_string(variant.rows);
  std::string name = "wgmma, tiles of ";
  name += variant.is_exchanged ? columns + "x" + rows + ", exchanged" : rows + "x" + columns;
  if (variant.takes_turns) name += ", in turns";
  const Sharing sharing = variant.sharing;
  if (sharing.blocks() > 1) {
    name +=
        ", in clusters of " + std::to_string(sharing.rows) + "x" + std::to_string(sharing.columns);
  }
  if (variant.last.tiles > 0) name += ", the last round helped";
  if (variant.parts == 1) return name;
  name += ", K in " + std::to_string(variant.parts) + " parts";
  return variant.meets ? name + " of a cluster" : name;
}

// Tiles of C, or of its transpose.
TileSchedule tiles_of(const Product& product, int64_t m, const Variant& variant, int group) {
  const auto across = variant.is_exchanged ? product.n : m;
  const auto along = variant.is_exchanged ? m : product.n;
  return {static_cast<int>(rounded_up_quotient(across, variant.rows)),
          static_cast<int>(rounded_up_quotient(along, variant.columns)), product.batches.numel,
          group};
}

int64_t steps_of(const Product& product) {
  return rounded_up_quotient(product.k, kLineBytes / size_of(product.c->dtype));
}

// What memory gives and takes, each element of a batch's matrices once.
int64_t memory_of(const Product& product, int64_t m) {
  const int64_t elements = m * product.k + product.k * product.n + m * product.n;
  return product.batches.numel * elements * size_of(product.c->dtype);
}

// The blocks that share tiles, for a value of `cluster`: the number of those that share B, plus 10
// if pairs also share A.
Sharing sharing_of(int64_t asked, const TileSchedule& tiles, const Variant& variant) {
  constexpr int64_t kBoth = 10;
  Sharing sharing;
  // A share is some patterns of a swizzle, of 8 lines.
  const int64_t most = std::min<int64_t>({asked % kBoth, tiles.rows, 4});
  while (2 * sharing.rows <= most && variant.columns % (16 * sharing.rows) == 0) sharing.rows *= 2;
  if (asked > kBoth && tiles.columns > 1) sharing.columns = 2;
  return sharing;
}

// The blocks that share a variant's tiles. By default they form the largest clusters that need no
// more rounds than single blocks.
Sharing choose_sharing(Planner& planner, const Product& product, const Variant& variant) {
  const int64_t m = product.planned_m(), asked = planner.tuned(Tunable::kProductsCluster);
  if (variant.takes_turns || variant.parts > 1 || variant.rows > 128 ||
      product.c->dtype == DType::kFloat32) {
    return {};
  }
  const TileSchedule tiles = tiles_of(product, m, variant, 1);
  if (asked != 0) return sharing_of(asked, tiles, variant);
  const int64_t multiprocessors = std::max(planner.device.multiprocessors(), 1);
  const auto rounds_of = [&](const Sharing& sharing) {
    const int64_t clusters = rounded_up_quotient(tiles.rows, sharing.rows) *
                             rounded_up_quotient(tiles.columns, sharing.columns) * tiles.batches;
    return rounded_up_quotient(clusters, clusters_at_once(sharing.blocks(), multiprocessors));
  };
  for (const int64_t form : {14, 12, 4}) {
    const Sharing sharing = sharing_of(form, tiles, variant);
    if (sharing.blocks() >= kFewestSharing && rounds_of(sharing) <= rounds_of({})) return sharing;
  }
  return {};
}

bool is_plain(const Product& product) {
  const auto& around = product.around;
  return around.input == nullptr && around.before == nullptr &&
         around.activation == Activation::kNone;
}

// The compiled tiles that may serve a product. Those of few rows exchange their operands, or have
// 64 rows. Of more rows, all forms may.
std::vector<Variant> variants_of(Planner& planner, const Product& product) {
  const int64_t m = product.planned_m(), few = planner.tuned(Tunable::kProductsSwap);
  const bool has_exchanged = product.c->dtype != DType::kFloat32 && few > 0;
  std::vector<Variant> variants;
  const auto add = [&](int columns, bool is_exchanged) {
    variants.push_back({rows_of_tile(is_exchanged, columns), columns, is_exchanged, false});
  };
  const auto add_narrowest = [&](const auto& widths) {  // that holds all rows
    const auto found = std::lower_bound(std::begin(widths), std::end(widths), m);
    if (found != std::end(widths)) add(*found, true);
  };
  const auto add_all = [&](const auto& widths) {
    for (const int columns : widths) add(columns, false);
  };
  if (has_exchanged) {
    is_plain(product) ? add_narrowest(kPlainExchangedWidths) : add_narrowest(kExchangedWidths);
  }
  const bool is_few = !variants.empty() && m <= few;
  if (has_exchanged && m > 64 && !product.is_batch_invariant) {
    for (const int columns : kWidthsOfMany) {
      if (columns == 64 || is_plain(product)) add(columns, true);
    }
  }
  if (!is_few) is_plain(product) ? add_all(kPlainWidths) : add_all(kWidths);
  // Where a plan must not depend on M, it has to serve few rows too.
  if (is_plain(product) && product.c->dtype != DType::kFloat32 && !product.is_batch_invariant) {
    for (const auto [rows, columns] : kOthers) {
      if (!is_few || rows == 64) variants.push_back({rows, columns, false, false});
    }
  }
  const int64_t turns = planner.tuned(Tunable::kProductsTurns);
  const bool may_split = !product.is_batch_invariant && planner.tuned(Tunable::kProductsSplit) > 1;
  if (!is_few && product.c->dtype != DType::kFloat32 && turns != kNever && !may_split) {
    if (turns == kAlways) variants.clear();
    variants.push_back({128, kTurnWidth, false, true});
  }
  return variants;
}

// Nanoseconds of a tile's end, for a column of 128 rows.
double end_of(const Product& product) {
  const Activation activation = product.around.activation;
  const bool is_simple = activation == Activation::kNone || activation == Activation::kRelu;
  return kWgmmaEnd + (is_plain(product) ? 0 : kMoreThanBias) + (is_simple ? 0 : kActivation);
}

// The variant with helpers in the last round, instead of parts and clusters.
Variant with_helpers(Variant variant, const TileWork& work, const HelpedRound& last,
                     int64_t multiprocessors) {
  variant.time = time_helped(work, last, multiprocessors), variant.last = last;
  variant.parts = 1, variant.meets = false, variant.sharing = {};
  return variant;
}

// The kernel and the parts of K that take the least time.
Variant best_variant(Planner& planner, const Product& product) {
  const int64_t m = product.planned_m();
  const int64_t multiprocessors = std::max(planner.device.multiprocessors(), 1);
  const int64_t asked_parts =
      product.is_batch_invariant ? 1 : planner.tuned(Tunable::kProductsSplit);
  const int64_t asked_meeting = planner.tuned(Tunable::kProductsSplitInCluster);
  std::vector<Variant> variants = variants_of(planner, product);
  const int64_t asked = planner.tuned(Tunable::kProductsColumns);
  const int64_t asked_sharing = planner.tuned(Tunable::kProductsCluster);
  const auto has_others = [&](const Variant& variant) { return variant.asked_number(m) != asked; };
  if (!std::all_of(variants.begin(), variants.end(), has_others)) {
    variants.erase(std::remove_if(variants.begin(), variants.end(), has_others), variants.end());
  }
  Variant best = variants.front();
  for (Variant& variant : variants) {
    const int columns = variant.columns;
    const auto speed = static_cast<double>(
        planner.tuned(variant.is_narrow() ? Tunable::kProductsSpeedOfFew : Tunable::kProductsSpeed,
                      variant.number()));
    const double height = variant.rows / 128.0;
    const TileSchedule tiles = tiles_of(product, m, variant, 1);
    // What all tiles load at a time, the L2 cache gives once.
    const int loaded = (tiles.rows > 1 ? variant.rows : 0) + (tiles.columns > 1 ? columns : 0);
    const TileWork work{tiles.count(),
                        static_cast<int>(steps_of(product)),
                        kWgmmaStep * height * columns * 100 / speed,
                        end_of(product) * height * columns,
                        memory_of(product, m),
                        variant.bytes_of_sums(),
                        variant.consumers(),
                        variant.takes_turns,
                        loaded * static_cast<int>(kLineBytes)};
    // Turns are along all of K, and so are tiles that blocks are asked to share.
    const bool is_whole = variant.takes_turns || (asked_parts == 0 && asked_sharing > 1);
    const int64_t parts_asked = is_whole ? 1 : asked_parts;
    const int meeting =
        asked_meeting == kNever
            ? 1
            : parts_in_cluster(work, parts_asked, variant.most_meeting(), multiprocessors);
    variant.time = time_in_cluster(work, meeting, multiprocessors);
    variant.parts = meeting, variant.meets = meeting > 1;
    if (meeting == 1 || asked_meeting != kAlways) {
      const int parts = parts_of(work, parts_asked, multiprocessors);
      const double other = time_of(work, parts, multiprocessors);
      if (meeting == 1 || other < variant.time) {
        variant.time = other, variant.parts = parts, variant.meets = false;
      }
    }
    variant.sharing = choose_sharing(planner, product, variant);
    if (variant.sharing.blocks() >= kFewestSharing) variant.time *= kTimeOfSharing;
    if (asked_parts == kByHelpers && !variant.takes_turns) {
      const HelpedRound last = helped_round(work, multiprocessors);
      if (last.tiles > 0) variant = with_helpers(variant, work, last, multiprocessors);
    }
    if (variant.time < best.time) best = variant;
  }
  return best;
}

// Whether there is a kernel of such tiles where more than a bias follows the sums.
constexpr bool has_full(int columns, bool is_exchanged) {
  for (const int width : kExchangedWidths) {
    if (is_exchanged && columns == width) return true;
  }
  for (const int width : kWidths) {
    if (!is_exchanged && columns == width) return true;
  }
  return false;
}

template <typename T, int kRows, int kColumns, bool kIsExchanged, bool kIsPlain,
          bool kTakesTurns = false, bool kIsActivated = false>
void plan_wgmma(Planner& planner, const Product& product, WgmmaOperands operands,
                const Variant& variant, const Address<char>& scratch) {
  using Shape = WgmmaShape<T, kColumns, kIsExchanged, kIsPlain, kTakesTurns, kRows, kIsActivated>;
  static_assert(Shape::kDepth == kLineBytes / sizeof(T));
  if (kIsExchanged) std::swap(operands.a, operands.b);
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const TmaMatrix& c = operands.stored();
  TmaMatrix before = c;
  if (operands.c && product.around.before != nullptr) {
    before.data = product.around.before->as<void>();
  }
  const Sharing sharing = Shape::kShares ? variant.sharing : Sharing{};
  TileSchedule tiles = tiles_of(product, product.m, variant, group);
  tiles.rows = static_cast<int>(rounded_up_quotient(tiles.rows, sharing.rows));
  tiles.columns = static_cast<int>(rounded_up_quotient(tiles.columns, sharing.columns));
  tiles.group = static_cast<int>(rounded_up_quotient(tiles.group, sharing.rows));
  const int64_t multiprocessors = planner.device.multiprocessors(), sharers = sharing.blocks();
  const SplitSchedule schedule{tiles, static_cast<int>(steps_of(product)), variant.parts,
                               variant.last};
  const WgmmaProduct given = wgmma_product(product, operands, schedule, sharing, variant.meets);
  const auto map = [](const WgmmaOperand& operand, int side, int blocks) {
    const int lines = (operand.major == Major::kK ? side : Shape::kDepth) / blocks;  // of a share
    return operand.matrix.encoded(Shape::kLine, static_cast<uint32_t>(lines), Swizzle::k128);
  };
  const int64_t count = given.schedule.count();
  int64_t blocks = count * sharers;
  if (variant.last.tiles > 0) {
    blocks = multiprocessors;
  } else if (!variant.meets && blocks > multiprocessors) {
    blocks = clusters_at_once(sharers, multiprocessors) * sharers;
  }
  Launch how{static_cast<unsigned>(blocks), Shape::kThreads};
  how.cluster_blocks = variant.meets ? variant.parts : static_cast<int>(sharers);
  how.shared_bytes = sizeof(typename Shape::Shared);
  planner.add<matmul_wgmma<T, kRows, kColumns, kIsExchanged, kIsPlain, kTakesTurns, kIsActivated>>(
      how, map(operands.a, Shape::kRows, sharing.columns),
      map(operands.b, Shape::kColumns, sharing.rows),
      c.encoded(Shape::kPanel, Shape::kPanelLines, Shape::kPanelSwizzle),
      before.encoded(Shape::kPanel, Shape::kPanelLines, Shape::kPanelSwizzle),
      product.epilogue<T>(), scratch, given);
}

// One of kOthers.
template <typename T, std::size_t kAt = 0>
void plan_other(Planner& planner, const Product& product, const WgmmaOperands& operands,
                const Variant& variant, const Address<char>& sums) {
  constexpr auto kSides = kOthers[kAt];
  if (variant.rows == kSides.first && variant.columns == kSides.second) {
    plan_wgmma<T, kSides.first, kSides.second, false, true>(planner, product, operands, variant,
                                                            sums);
  } else if constexpr (kAt + 1 < std::size(kOthers)) {
    plan_other<T, kAt + 1>(planner, product, operands, variant, sums);
  }
}

bool plan_on_tensor_cores(Planner& planner, const Product& product) {
  const DType dtype = product.c->dtype;
  const int64_t most = std::numeric_limits<int32_t>::max() - 1024;  // coordinates have 32 bits
  if (planner.device.architecture() != 90 || product.k == 0 || product.of_c.column != 1 ||
      (product.around.bias != nullptr && product.n > 1 && product.bias_stride() != 1) ||
      std::max({product.m, product.n, product.k, product.batches.numel}) > most ||
      (size_of(dtype) != 2 && !product.is_tf32)) {
    return false;
  }
  std::optional<WgmmaOperands> operands = wgmma_operands(planner.device, product);
  if (!operands) return false;
  const bool is_a_along_k = operands->a.major == Major::kK;
  const bool is_b_along_k = operands->b.major == Major::kK;
  // As BLAS names layouts: whether a row-major reader would call A, and B, transposed.
  choose_numbers(planner, product,
                 std::string(is_a_along_k ? "N" : "T") + (is_b_along_k ? "T" : "N"));
  const Variant variant = best_variant(planner, product);
  const int64_t parts = tiles_of(product, product.m, variant, 1).count() * variant.parts;
  if (parts > most) return false;  // their indices have 32 bits too
  Address<char> sums;
  if ((variant.parts > 1 && !variant.meets) || variant.last.tiles > 0) {
    const int64_t slots = variant.last.tiles > 0 ? variant.last.slots() : parts;
    const int64_t bytes = slots * variant.bytes_of_sums();
    sums = planner.need({kSplitCounterBytes + bytes, kSplitCounterBytes, Lifetime::kStream});
  }
  const char* const copies = plan_padded_copies(planner, operands->a, operands->b);
  const char* const precision = product.is_tf32 ? ", TF32" : "";
  planner.plan.variant = kept_text(name_of(variant) + precision + copies);
  const auto plan = [&](auto type) {
    using T = typename decltype(type)::type;
    const auto with = [&](auto columns, auto is_exchanged) {
      if constexpr (sizeof(T) == 2 || !is_exchanged) {
        if (is_plain(product)) {
          plan_wgmma<T, rows_of_tile(is_exchanged, columns), columns, is_exchanged, true>(
              planner, product, *operands, variant, sums);
        } else if constexpr (has_full(columns, is_exchanged)) {
          plan_wgmma<T, rows_of_tile(is_exchanged, columns), columns, is_exchanged, false>(
              planner, product, *operands, variant, sums);
        }
      }
    };
    constexpr std::bool_constant<true> kExchanged;
    constexpr std::bool_constant<false> kAsTheyAre;
    if constexpr (sizeof(T) == 2) {
      if (variant.takes_turns) {
        const auto plan = is_plain(product) ? plan_wgmma<T, 128, kTurnWidth, false, true, true>
                          : product.around.input == nullptr
                              ? plan_wgmma<T, 128, kTurnWidth, false, false, true, true>
                              : plan_wgmma<T, 128, kTurnWidth, false, false, true>;
        return plan(planner, product, *operands, variant, sums);
      }
      if (variant.rows != 128 && !variant.is_exchanged) {
        return plan_other<T>(planner, product, *operands, variant, sums);
      }
    }
    switch (variant.is_exchanged ? -variant.columns : variant.columns) {
      case -16: return with(std::integral_constant<int, 16>{}, kExchanged);
      case -32: return with(std::integral_constant<int, 32>{}, kExchanged);
      case -64: return with(std::integral_constant<int, 64>{}, kExchanged);
      case -80: return with(std::integral_constant<int, 80>{}, kExchanged);
      case -96: return with(std::integral_constant<int, 96>{}, kExchanged);
      case -160: return with(std::integral_constant<int, 160>{}, kExchanged);
      case -256: return with(std::integral_constant<int, 256>{}, kExchanged);
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
  tensor_core_model() = [](Planner& planner, const Product& product) {
    return best_variant(planner, product).time;
  };
  return true;
}();

}  // namespace
