// Products on tensor cores, for tests/test_product_mutations.py, which gives the header that this
// includes some faults. `in` holds bfloat16: A of kM x kK by rows, and then B of kK x kN by rows.
#include "diglot/products/tensor_cores.cuh"

#include "runner.h"

namespace planted {

using namespace diglot;

using Shape = WgmmaShape<bfloat16, 64>;

__global__ void __launch_bounds__(Shape::kThreads, 1)
    multiply(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
             const __grid_constant__ TensorMap map_c,
             const __grid_constant__ Epilogue<bfloat16> epilogue,
             const __grid_constant__ WgmmaProduct product) {
  multiply_by_wgmma<bfloat16, Shape>(a, b, map_c, epilogue, product);
}

TensorMap map_of(const void* matrix, int rows, int columns, uint32_t box_columns, uint32_t box_rows,
                 Swizzle swizzle) {
  const auto width = static_cast<uint64_t>(columns), bytes = width * sizeof(bfloat16);
  return tensor_map({TensorType::kBfloat16,
                     matrix,
                     {width, static_cast<uint64_t>(rows), 1, 1},
                     {bytes, bytes, bytes},
                     {box_columns, box_rows, 1, 1},
                     {},
                     swizzle});
}

template <int kM, int kN, int kK, unsigned kBlocks>
constexpr Start start_product = [](const Launch&, const float* in, float* out) {
  const Epilogue<bfloat16> epilogue{kM, kN, nullptr, 0, reinterpret_cast<bfloat16*>(out), {kN, 1}};
  const WgmmaProduct product{
      (kK + Shape::kDepth - 1) / Shape::kDepth,
      Major::kK,
      Major::kMn,
      {(kM + Shape::kRows - 1) / Shape::kRows, (kN + Shape::kColumns - 1) / Shape::kColumns, 1, 2},
      1,
      {},
      {},
      {},
      true,
      {}};
  Launch how{kBlocks, Shape::kThreads};
  how.shared_bytes = sizeof(Shape::Shared);
  launch<multiply>(how, nullptr, map_of(in, kM, kK, 64, Shape::kRows, Swizzle::k128),
                   map_of(in + kM * kK / 2, kK, kN, 64, Shape::kDepth, Swizzle::k128),
                   map_of(out, kM, kN, Shape::kPanel, Shape::kConsumerRows, Swizzle::k64), epilogue,
                   product);
};

const std::vector<Entry> kernels = {
    {"136x136x616", start_product<136, 136, 616, 2>},  // tiles beyond edges, more steps than stages
};

}  // namespace planted
