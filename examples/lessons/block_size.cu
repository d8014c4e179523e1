// GELU of an array, by blocks of several sizes. Twin of the kernel in block_size.py.
#include "diglot/gelu.cuh"
#include "lesson.h"

namespace {

__device__ float activated(float x) {
  return diglot::gelu<diglot::Approximate::kTanh, diglot::Precision::kFloat>(x);
}

// Each thread takes kEach accesses of 16 bytes. Those of a warp are neighbours.
template <int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads) gelu_kernel(const float4* x, float4* out) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kEach + threadIdx.x;
  float4 values[kEach];
  DIGLOT_UNROLL
  for (int i = 0; i < kEach; ++i) values[i] = x[first + i * kThreads];
  DIGLOT_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const float4 v = values[i];
    out[first + i * kThreads] =
        make_float4(activated(v.x), activated(v.y), activated(v.z), activated(v.w));
  }
}

template <int kThreads, int kEach>
void launch_gelu(int64_t n, const float* x, float* out, void* stream) {
  diglot::launch<gelu_kernel<kThreads, kEach>>(static_cast<unsigned>(n / (4 * kThreads * kEach)),
                                               kThreads, static_cast<cudaStream_t>(stream),
                                               reinterpret_cast<const float4*>(x),
                                               reinterpret_cast<float4*>(out));
}

}  // namespace

// block: elements of a block; n is a multiple of it.
LESSON gelu_of(int block, int threads, int n, const float* x, float* out, void* stream) {
  return guarded([&] {
    switch (10 * threads + block / (4 * threads)) {
      case 321: return launch_gelu<32, 1>(n, x, out, stream);
      case 1281: return launch_gelu<128, 1>(n, x, out, stream);
      case 1284: return launch_gelu<128, 4>(n, x, out, stream);
      case 2561: return launch_gelu<256, 1>(n, x, out, stream);
      case 2564: return launch_gelu<256, 4>(n, x, out, stream);
      case 10241: return launch_gelu<1024, 1>(n, x, out, stream);
      case 10244: return launch_gelu<1024, 4>(n, x, out, stream);
      default: throw std::invalid_argument("no kernel was compiled for this block");
    }
  });
}
