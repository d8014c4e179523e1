// examples/tensor_cores/product.cu on some sizes, for tests/test_tensor_cores_cuda.py.
#include "../../examples/tensor_cores/product.cu"
#include "runner.h"

namespace planted {

// `in` has the bfloat16 elements of A and then of B, and `out` those of C.
template <int kM, int kN, int kK>
constexpr Start start_product = [](const diglot::Launch&, const float* in, float* out) {
  product(in, in + kM * kK / 2, out, kM, kN, kK, nullptr);
};

const std::vector<Entry> kernels = {
    {"8x8x8", start_product<8, 8, 8>},
    {"128x128x64", start_product<128, 128, 64>},
    {"136x264x200", start_product<136, 264, 200>},
    {"64x72x1024", start_product<64, 72, 1024>},
    {"512x512x512", start_product<512, 512, 512>},
};

}  // namespace planted
