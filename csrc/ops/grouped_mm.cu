// Products of groups of matrices: the kernel for every type, size and layout, launcher,
// registration. Twin of triton_ops/grouped_mm.py. The kernels for tensor cores are in
// sm_90a/grouped_mm.cu.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/grouped_products.h"
#include "diglot/launch/products.h"
#include "diglot/products/grouped_cuda_cores.cuh"
#include "torch/launcher.h"

namespace diglot {

// Two blocks on each SM, where a thread's sums leave registers for that.
template <typename T, int kSide>
__global__ void __launch_bounds__(FmaShape<kSide>::kThreads, kSide == 8 ? 1 : 2)
    grouped_mm_fma(const T* a, const T* b, const int32_t* offsets,
                   const __grid_constant__ Epilogue<T> epilogue,
                   const __grid_constant__ GroupedFma product) {
  multiply_groups_by_fma<T, FmaShape<kSide>>(a, b, offsets, epilogue, product);
}

}  // namespace diglot

namespace {

using namespace diglot;

constexpr int64_t kGridSide = 1 << 30;  // blocks along an axis of a grid

template <typename T, int kSide>
void plan_fma(Planner& planner, const GroupedProduct& product) {
  using Shape = FmaShape<kSide>;
  const auto height = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  const GroupedFma given{product.m,
                         product.n,
                         product.k,
                         product.strides_of(product.a),
                         product.strides_of(product.b),
                         product.group_stride(product.b),
                         product.group_stride(product.c),
                         product.schedule(Shape::kTile, Shape::kTile, height),
                         product.divides_k};
  const int64_t across = std::min(given.schedule.most(), kGridSide);
  const dim3 grid{static_cast<unsigned>(across), blocks_for(given.schedule.most(), across)};
  planner.add<grouped_mm_fma<T, kSide>>(
      {grid, Shape::kThreads}, product.a.as<const T>(), product.b.as<const T>(),
      product.offsets->as<const int32_t>(), product.epilogue<T>(), given);
}

void plan_groups(Planner& planner, const GroupedProduct& product) {
  if (product.is_empty()) return;
  const GroupedPlanner on_tensor_cores = grouped_tensor_core_planner();
  if (on_tensor_cores != nullptr && on_tensor_cores(planner, product)) return;
  planner.choose("strided", {product.m, product.n, product.k, product.groups}, {&product.a});
  dispatch_floating(product.c.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    // Large tiles are for products that fill the GPU with them, whatever their groups.
    using Large = FmaShape<8>;
    if constexpr (sizeof(T) < 8) {
      const int64_t tiles = product.schedule(Large::kTile, Large::kTile, 1).most();
      if (tiles >= 2 * planner.device.multiprocessors()) {
        planner.plan.variant = "fma, tiles of 128x128";
        return plan_fma<T, 8>(planner, product);
      }
    }
    planner.plan.variant = "fma, tiles of 64x64";
    plan_fma<T, 4>(planner, product);
  });
}

void grouped_mm_forward(Planner& planner, const Operand& input, const Operand& other,
                        const Operand* offs, const Operand& out) {
  if (offs == nullptr) return plan_product(planner, Product(input, other, {}, out));
  plan_groups(planner, GroupedProduct(input, other, *offs, out));
}

DIGLOT_LAUNCHER(grouped_mm_forward,
                "(Tensor input, Tensor other, Tensor? offs, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
