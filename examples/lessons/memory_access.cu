// Reads near each other and far apart. Twin of the kernel in memory_access.py.
#include "lesson.h"

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    copy_strided_kernel(int64_t n, int64_t stride, const float* in, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t rows = n / stride;
  if (i < n) out[i] = in[i % rows * stride + i / rows];
}

}  // namespace

// out[i] = in[i % rows * stride + i / rows] for i < n, with rows = n / stride, which divides n:
// every element is read once, and neighbouring threads read elements that are `stride` apart.
LESSON copy_strided(int n, int stride, const float* in, float* out, void* stream) {
  return guarded([&] {
    diglot::launch<copy_strided_kernel>(diglot::blocks_for(n, kThreads), kThreads,
                                        static_cast<cudaStream_t>(stream), n, stride, in, out);
  });
}
