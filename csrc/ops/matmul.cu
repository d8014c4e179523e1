// Products of matrices: the kernel for every type, size and layout, launcher, registration. Twin of
// triton_ops/matmul.py. The kernels for tensor cores are in sm_90a/matmul.cu and, of a float32 C of
// 16-bit operands, in sm_90a/wide_matmul.cu.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/products.h"
#include "diglot/products/cuda_cores.cuh"
#include "diglot/products/dmma.cuh"
#include "torch/launcher.h"

namespace diglot {

// Two blocks on each SM, where a thread's sums leave registers for that.
template <typename T, int kSide, bool kHasVectors>
__global__ void __launch_bounds__(FmaShape<kSide>::kThreads, 2)
    matmul_fma(const T* a, const T* b, const __grid_constant__ Epilogue<T> epilogue,
               const __grid_constant__ FmaProduct product) {
  multiply_by_fma<T, FmaShape<kSide, kHasVectors>>(a, b, epilogue, product);
}

// Operands have 16 bits, and C is float32.
template <typename T, int kSide>
__global__ void __launch_bounds__(FmaShape<kSide>::kThreads, 2)
    matmul_wide_fma(const T* a, const T* b, const __grid_constant__ Epilogue<float> epilogue,
                    const __grid_constant__ FmaProduct product) {
  multiply_by_fma<T, FmaShape<kSide>>(a, b, epilogue, product);
}

template <int kTile>
__global__ void __launch_bounds__(DmmaShape<kTile>::kThreads, 1)
    matmul_dmma(const double* a, const double* b, const __grid_constant__ Epilogue<double> epilogue,
                const __grid_constant__ FmaProduct product) {
  multiply_by_dmma<DmmaShape<kTile>>(a, b, epilogue, product);
}

}  // namespace diglot

namespace {

using namespace diglot;

constexpr int64_t kGridSide = 1 << 30;  // blocks along an axis of a grid

template <typename Shape>
TileSchedule schedule_of(const Product& product, int64_t m, int64_t batches, int group) {
  const auto tiles = [](int64_t size) {
    return static_cast<int>((size + Shape::kTile - 1) / Shape::kTile);
  };
  return {tiles(m), tiles(product.n), batches, group};
}

// Plans a launch of kKernel for each slice of the batch. C is of type Out.
template <typename T, typename Shape, auto kKernel, typename Out = T>
void plan_tiles(Planner& planner, const Product& product, std::size_t shared_bytes = 0) {
  const auto group = static_cast<int>(planner.tuned(Tunable::kProductsGroup));
  for (const auto& slice : product.batches.slices<int64_t>()) {
    const FmaProduct given{
        product.m,     product.n,
        product.k,     static_cast<int>((product.k + Shape::kDepth - 1) / Shape::kDepth),
        product.of_a,  product.of_b,
        slice.strides, schedule_of<Shape>(product, product.m, slice.count, group)};
    const int64_t across = std::min(given.schedule.count(), kGridSide);
    const dim3 grid{static_cast<unsigned>(across), blocks_for(given.schedule.count(), across)};
    planner.add<kKernel>({grid, Shape::kThreads, shared_bytes}, product.a->as<const T>(),
                         product.b->as<const T>(), product.epilogue<Out>(), given);
  }
}

// Whether an operand consists of aligned vectors of four elements, along its side or else along K.
bool has_vectors(const Operand& operand, int64_t side, int64_t side_stride, int64_t k,
                 int64_t k_stride, const ProductBatches& batches, int array) {
  constexpr int kElements = 4;
  const bool is_along_k = k_stride == 1 && side_stride != 1;
  const auto [inner, inner_stride] =
      is_along_k ? std::pair(k, k_stride) : std::pair(side, side_stride);
  const auto [outer, outer_stride] =
      is_along_k ? std::pair(side, side_stride) : std::pair(k, k_stride);
  return inner_stride == 1 && inner % kElements == 0 &&
         operand.is_aligned(kElements * size_of(operand.dtype)) &&
         (outer == 1 || outer_stride % kElements == 0) &&
         batches.has_multiples(array, kElements, 0);
}

// Vectors are for float32. Operands of 16 bits that have them run on tensor cores, where a GPU has
// TMA.
template <typename T, int kSide>
void plan_fma(Planner& planner, const Product& product) {
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  const ProductBatches& batches = product.batches;
  if constexpr (std::is_same_v<T, float>) {
    if (has_vectors(*product.a, m, product.of_a.row, k, product.of_a.column, batches, 1) &&
        has_vectors(*product.b, n, product.of_b.column, k, product.of_b.row, batches, 2)) {
      return plan_tiles<T, FmaShape<kSide, true>, matmul_fma<T, kSide, true>>(planner, product);
    }
  }
  if constexpr (sizeof(T) == 2) {
    if (product.is_wide()) {
      constexpr auto kKernel = matmul_wide_fma<T, kSide>;
      return plan_tiles<T, FmaShape<kSide>, kKernel, float>(planner, product);
    }
  }
  plan_tiles<T, FmaShape<kSide>, matmul_fma<T, kSide, false>>(planner, product);
}

template <int kTile>
void plan_dmma(Planner& planner, const Product& product) {
  using Shape = DmmaShape<kTile>;
  plan_tiles<double, Shape, matmul_dmma<kTile>>(planner, product, sizeof(typename Shape::Shared));
}

void matmul_forward(Planner& planner, const Operand& input, const Operand& other,
                    bool batch_invariant, std::string_view precision, const Operand& out) {
  Product product(input, other, {}, out);
  product.is_batch_invariant = batch_invariant;
  plan_product(planner, with_precision(product, precision));
}

DIGLOT_LAUNCHER(matmul_forward,
                "(Tensor input, Tensor other, bool batch_invariant, str precision, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace

namespace diglot {

void plan_product(Planner& planner, const Product& product) {
  if (product.is_empty()) return;
  const TensorCorePlanner on_tensor_cores =
      product.is_wide() ? wide_planner() : tensor_core_planner();
  if (on_tensor_cores != nullptr && on_tensor_cores(planner, product)) return;
  choose_numbers(planner, product, "strided");
  dispatch_floating(product.a->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    // Large tiles are for products that fill the GPU.
    const TileSchedule large =
        schedule_of<FmaShape<8>>(product, product.planned_m(), product.batches.numel, /*group=*/1);
    const bool is_large = large.count() >= planner.device.multiprocessors();
    if constexpr (std::is_same_v<T, double>) {
      constexpr int kReserved = 1024;  // bytes of a block's shared memory
      const bool has_room = planner.device.shared_bytes() - kReserved >=
                            static_cast<int>(sizeof(DmmaShape<128>::Shared));
      planner.plan.variant =
          is_large && has_room ? "dmma, tiles of 128x128" : "dmma, tiles of 64x64";
      is_large&& has_room ? plan_dmma<128>(planner, product) : plan_dmma<64>(planner, product);
    } else {
      planner.plan.variant = is_large ? "fma, tiles of 128x128" : "fma, tiles of 64x64";
      is_large ? plan_fma<T, 8>(planner, product) : plan_fma<T, 4>(planner, product);
    }
  });
}

}  // namespace diglot
