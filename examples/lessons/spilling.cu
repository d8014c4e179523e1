// out = a · Σ(a·b) + b in rows, with fewer and fewer registers for a thread. Twin of the kernel in
// spilling.py.
#include "lesson.h"

namespace {

constexpr int kThreads = 128;
constexpr int kRow = 8192;
constexpr int kEach = kRow / kThreads;  // elements of each array for a thread

// An SM must be able to hold kBlocks blocks at once: the compiler uses no more registers than that
// leaves each thread.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_kernel(const float* a, const float* b, float* out) {
  __shared__ float partial[kThreads / 32];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRow + threadIdx.x;
  float x[kEach], y[kEach];
  float sum = 0;
  DIGLOT_UNROLL
  for (int i = 0; i < kEach; ++i) x[i] = a[first + i * kThreads];
  DIGLOT_UNROLL
  for (int i = 0; i < kEach; ++i) y[i] = b[first + i * kThreads];
  DIGLOT_UNROLL
  for (int i = 0; i < kEach; ++i) sum += x[i] * y[i];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = partial[0] + partial[1] + partial[2] + partial[3];
  DIGLOT_UNROLL
  for (int i = 0; i < kEach; ++i) out[first + i * kThreads] = x[i] * sum + y[i];
}

}  // namespace

LESSON rows(int blocks_an_sm, int count, const float* a, const float* b, float* out, void* stream) {
  return guarded([&] {
    const auto on = static_cast<cudaStream_t>(stream);
    switch (blocks_an_sm) {
      case 1: return diglot::launch<rows_kernel<1>>(count, kThreads, on, a, b, out);
      case 4: return diglot::launch<rows_kernel<4>>(count, kThreads, on, a, b, out);
      case 8: return diglot::launch<rows_kernel<8>>(count, kThreads, on, a, b, out);
      case 16: return diglot::launch<rows_kernel<16>>(count, kThreads, on, a, b, out);
      default: throw std::invalid_argument("blocks_an_sm must be 1, 4, 8 or 16");
    }
  });
}
