// A product of float64 on tensor cores, for tests/test_dmma.py, which gives the header that this
// includes some faults. `in` holds float64: A of kM x kK by rows, and then B of kK x kN by rows.
#include "diglot/products/dmma.cuh"

#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kM = 70, kN = 67, kK = 90;  // more steps than stages
using Shape = DmmaShape<64>;

__global__ void __launch_bounds__(Shape::kThreads)
    multiply(const double* a, const double* b, const __grid_constant__ Epilogue<double> epilogue,
             const __grid_constant__ FmaProduct product) {
  multiply_by_dmma<Shape>(a, b, epilogue, product);
}

// The test gives a block for each float of `out`.
constexpr Start start_product = [](const Launch&, const float* in, float* out) {
  const auto* const a = reinterpret_cast<const double*>(in);
  const FmaProduct product{kM,      kN,      kK, (kK + Shape::kDepth - 1) / Shape::kDepth,
                           {kK, 1}, {kN, 1}, {}, {2, 2, 1, 8}};
  Epilogue<double> epilogue{kM, kN, 1};
  epilogue.c = reinterpret_cast<double*>(out), epilogue.strides = {kN, 1};
  Launch how{4, Shape::kThreads};
  how.shared_bytes = sizeof(Shape::Shared);
  launch<multiply>(how, nullptr, a, a + kM * kK, epilogue, product);
};

// Half a warp calls what a warp must.
__global__ void half_a_warp(const float*, float* out) {
  double sums[4] = {};
  const double a[8] = {}, b[4] = {};
  if (threadIdx.x < 16) dmma(sums, a, b);
  out[0] = static_cast<float>(sums[0]);
}

const std::vector<Entry> kernels = {{"70x67x90", start_product}, PLANTED(half_a_warp)};

}  // namespace planted
