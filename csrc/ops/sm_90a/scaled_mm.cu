// Products of 8-bit floats with scales on Hopper's tensor cores: kernels, and which products they
// take. ../scaled_mm.cu has the launcher.
//
// Architectures: 9.0a
#include <limits>

#include "diglot/launch/kept_text.h"
#include "diglot/launch/scaled_products.h"
#include "diglot/launch/wgmma_product.h"
#include "diglot/products/scaled.cuh"

namespace diglot {

template <typename T, int kColumns, Accumulation kAccumulation, bool kTakesTurns>
__global__ void __launch_bounds__(ScaledShape<kColumns, kAccumulation>::kThreads, 1)
    scaled_mm_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                    const __grid_constant__ TensorMap map_c, const __grid_constant__ Scales scale_a,
                    const __grid_constant__ Scales scale_b,
                    const __grid_constant__ Epilogue<T> epilogue,
                    const __grid_constant__ ScaledWgmmaProduct product) {
  multiply_scaled_by_wgmma<T, ScaledShape<kColumns, kAccumulation, kTakesTurns>>(
      a, b, map_c, scale_a, scale_b, epilogue, product);
}

}  // namespace diglot

namespace {

using namespace diglot;

// A and B along K, and C if TMA can store it.
template <typename T, int kColumns, Accumulation kAccumulation, bool kTakesTurns = false>
void plan_wgmma(Planner& planner, const ScaledProduct& scaled, const WgmmaOperands& operands) {
  using Shape = ScaledShape<kColumns, kAccumulation, kTakesTurns>;
  const Product& product = scaled.product;
  const auto count = [](int64_t size, int side) {
    return static_cast<int>((size + side - 1) / side);
  };
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const TileSchedule tiles{count(product.m, Shape::kRows), count(product.n, Shape::kColumns), 1,
                           group};
  const SplitSchedule schedule{tiles, count(product.k, Shape::kDepth), 1};
  WgmmaProduct given{Major::kK, Major::kK, schedule, {}, false, 1};
  given.is_stored_by_tma = operands.c.has_value();
  const int64_t most = planner.device.multiprocessors();
  Launch how{static_cast<unsigned>(std::min(tiles.count(), most)), Shape::kThreads};
  how.shared_bytes = sizeof(typename Shape::Shared);
  const auto map_c =
      operands.c
          ? operands.c->encoded(Shape::kPanel, Shape::kConsumerRows, Swizzle::k64)
          : operands.a.matrix.encoded(Shape::kDepth, Shape::kRows, Swizzle::k128);  // not used
  planner.add<scaled_mm_wgmma<T, kColumns, kAccumulation, kTakesTurns>>(
      how, operands.a.matrix.encoded(Shape::kDepth, Shape::kRows, Swizzle::k128),
      operands.b.matrix.encoded(Shape::kDepth, Shape::kColumns, Swizzle::k128), map_c,
      scaled.scale_a.argument(), scaled.scale_b.argument(), product.epilogue<T>(),
      ScaledWgmmaProduct{given, product.a->dtype == DType::kFloat8E5M2,
                         product.b->dtype == DType::kFloat8E5M2});
}

// The compiled tiles for C of type T.
struct Form {
  Accumulation accumulation;
  int columns;
  const char* variant;
  void (*plan)(Planner&, const ScaledProduct&, const WgmmaOperands&);
  double gain = 1;  // over the speed of tiles of these columns
};
constexpr auto kFast = Accumulation::kFast, kExact = Accumulation::kExact,
               kBlocks = Accumulation::kBlocks;
// Turns hide the end of a tile. Fitted to sums of 4096 to 8192 products on an H200.
constexpr double kGainOfTurns = 1.08;
// Speeds of 16-bit tiles are those without what the L2 cache gives, which bounds narrow ones.
constexpr double kGainOf64 = 0.96, kGainOf128 = 0.91;
template <typename T>
constexpr Form kForms[] = {
    {kFast, 64, "wgmma, fast, tiles of 128x64", plan_wgmma<T, 64, kFast>, kGainOf64},
    {kFast, 128, "wgmma, fast, tiles of 128x128", plan_wgmma<T, 128, kFast>, kGainOf128},
    {kFast, 192, "wgmma, fast, tiles of 128x192, in turns", plan_wgmma<T, 192, kFast, true>,
     kGainOfTurns},
    {kFast, 256, "wgmma, fast, tiles of 128x256", plan_wgmma<T, 256, kFast>},
    {kExact, 64, "wgmma, exact, tiles of 128x64", plan_wgmma<T, 64, kExact>, kGainOf64},
    {kExact, 128, "wgmma, exact, tiles of 128x128", plan_wgmma<T, 128, kExact>, kGainOf128},
    {kExact, 192, "wgmma, exact, tiles of 128x192", plan_wgmma<T, 192, kExact>},
    {kBlocks, 64, "wgmma, blocks, tiles of 128x64", plan_wgmma<T, 64, kBlocks>, kGainOf64},
    {kBlocks, 128, "wgmma, blocks, tiles of 128x128", plan_wgmma<T, 128, kBlocks>, kGainOf128}};

// The form whose tiles take the least time: rounds of tiles, times a tile's width by its speed.
template <typename T>
const Form& best_form(Planner& planner, const ScaledProduct& scaled) {
  const int64_t rows = (scaled.product.planned_m() + 127) / 128;
  const int64_t multiprocessors = std::max(planner.device.multiprocessors(), 1);
  const int64_t asked = planner.tuned(Tunable::kProductsColumns);
  const Form* best = nullptr;
  double least = std::numeric_limits<double>::max();
  for (const Form& form : kForms<T>) {
    if (form.accumulation != scaled.accumulation) continue;
    if (form.columns == asked) return form;
    const int64_t tiles = rows * ((scaled.product.n + form.columns - 1) / form.columns);
    const int64_t rounds = (tiles + multiprocessors - 1) / multiprocessors;
    const auto speed = static_cast<double>(planner.tuned(Tunable::kProductsSpeed, form.columns));
    const double time = static_cast<double>(rounds * form.columns) / (speed * form.gain);
    if (time < least) least = time, best = &form;
  }
  return *best;
}

bool plan_on_tensor_cores(Planner& planner, const ScaledProduct& scaled) {
  const Product& product = scaled.product;
  const int64_t most = std::numeric_limits<int32_t>::max() - 1024;  // coordinates have 32 bits
  if (planner.device.architecture() != 90 || product.k == 0 || product.of_c.column != 1 ||
      (product.around.bias != nullptr && product.n > 1 && product.bias_stride() != 1) ||
      std::max({product.m, product.n, product.k}) > most) {
    return false;
  }
  std::optional<WgmmaOperands> operands = wgmma_operands(planner.device, product);
  if (!operands) return false;
  if (product.c->dtype == DType::kFloat32) operands->c.reset();
  constexpr const char* kNames[] = {"fast", "exact", "blocks"};
  choose_numbers(planner, product, kNames[static_cast<int>(scaled.accumulation)]);
  dispatch_result(product.c->dtype, [&](auto type) {
    const Form& form = best_form<typename decltype(type)::type>(planner, scaled);
    const char* const copies = plan_padded_copies(planner, operands->a, operands->b);
    planner.plan.variant = kept_text(std::string(form.variant) + copies);
    form.plan(planner, scaled, *operands);
  });
  return true;
}

const bool is_registered = [] {
  scaled_planner() = plan_on_tensor_cores;
  return true;
}();

}  // namespace
