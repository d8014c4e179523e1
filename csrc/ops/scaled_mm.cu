// Products of 8-bit floats with scales: the kernel for every type, size and layout, launcher,
// registration. Twin of triton_ops/scaled_mm.py. The kernels for tensor cores are in
// sm_90a/scaled_mm.cu.
#include "diglot/launch/scaled_products.h"
#include "diglot/products/scaled_cuda_cores.cuh"
#include "torch/launcher.h"

namespace diglot {

// With two blocks on each SM, a thread would have too few registers for scales beside its sums.
template <typename A, typename B, typename T>
__global__ void __launch_bounds__(ScaledFmaShape::kThreads, 1)
    scaled_mm_fma(const A* a, const B* b, const __grid_constant__ Scales scale_a,
                  const __grid_constant__ Scales scale_b,
                  const __grid_constant__ Epilogue<T> epilogue,
                  const __grid_constant__ FmaProduct product, bool has_blocks) {
  multiply_scaled_by_fma(a, b, scale_a, scale_b, epilogue, product, has_blocks);
}

}  // namespace diglot

namespace {

using namespace diglot;

constexpr int64_t kGridSide = 1 << 30;  // blocks along an axis of a grid

template <typename A, typename B, typename T>
void plan_fma(Planner& planner, const ScaledProduct& scaled) {
  using Shape = ScaledFmaShape;
  const Product& product = scaled.product;
  const auto count = [](int64_t size, int side) {
    return static_cast<int>((size + side - 1) / side);
  };
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const TileSchedule schedule{count(product.m, Shape::kTile), count(product.n, Shape::kTile), 1,
                              group};
  const FmaProduct given{product.m,    product.n,    product.k, count(product.k, Shape::kDepth),
                         product.of_a, product.of_b, {},        schedule};
  const int64_t across = std::min(schedule.count(), kGridSide);
  const dim3 grid{static_cast<unsigned>(across), blocks_for(schedule.count(), across)};
  planner.add<scaled_mm_fma<A, B, T>>({grid, Shape::kThreads}, product.a->as<const A>(),
                                      product.b->as<const B>(), scaled.scale_a.argument(),
                                      scaled.scale_b.argument(), product.epilogue<T>(), given,
                                      scaled.accumulation == Accumulation::kBlocks);
}

template <typename T>
void plan_fma(Planner& planner, const ScaledProduct& scaled) {
  const Product& product = scaled.product;
  if (product.a->dtype == DType::kFloat8E5M2) {
    plan_fma<float8_e5m2, float8_e4m3, T>(planner, scaled);
  } else if (product.b->dtype == DType::kFloat8E5M2) {
    plan_fma<float8_e4m3, float8_e5m2, T>(planner, scaled);
  } else {
    plan_fma<float8_e4m3, float8_e4m3, T>(planner, scaled);
  }
}

void scaled_mm_forward(Planner& planner, const Operand& mat_a, const Operand& mat_b,
                       const Operand& scale_a, const Operand& scale_b, const Operand* bias,
                       bool use_fast_accum, bool batch_invariant, const Operand& out) {
  Product product(mat_a, mat_b, {bias}, out);
  product.is_batch_invariant = batch_invariant;
  if (product.is_empty()) return;
  const ScaledProduct scaled(product, scale_a, scale_b, use_fast_accum);
  const ScaledPlanner on_tensor_cores = scaled_planner();
  if (on_tensor_cores != nullptr && on_tensor_cores(planner, scaled)) return;
  choose_numbers(planner, product, "strided");
  planner.plan.variant = "fma, tiles of 64x64";
  dispatch_result(out.dtype,
                  [&](auto type) { plan_fma<typename decltype(type)::type>(planner, scaled); });
}

DIGLOT_LAUNCHER(
    scaled_mm_forward,
    "(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
    "bool use_fast_accum, bool batch_invariant, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
