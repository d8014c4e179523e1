// Softmax of rows: a block takes every gridDim.x-th row. Twin of the kernel in
// persistent_softmax.py.
#include "lesson.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// The reduction of a value over the block, known to all of its threads.
template <typename Combine>
__device__ float reduce_block(float value, const Combine& combine) {
  __shared__ float of_warps[kWarps];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  __syncthreads();  // of_warps may still be read, from the reduction before
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warps[0];
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, of_warps[warp]);
  return value;
}

__global__ void __launch_bounds__(kThreads)
    softmax_kernel(int rows, int columns, const float* x, float* out) {
  extern __shared__ float values[];  // a row; each thread meets its own elements alone
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const in_row = x + static_cast<int64_t>(row) * columns;
    float* const out_row = out + static_cast<int64_t>(row) * columns;
    float greatest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += kThreads) {
      values[i] = in_row[i];
      greatest = fmaxf(greatest, values[i]);
    }
    greatest = reduce_block(greatest, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += kThreads) {
      values[i] = expf(values[i] - greatest);
      sum += values[i];
    }
    sum = reduce_block(sum, [](float a, float b) { return a + b; });
    for (int i = threadIdx.x; i < columns; i += kThreads) out_row[i] = values[i] / sum;
  }
}

}  // namespace

LESSON softmax(int blocks, int rows, int columns, const float* x, float* out, void* stream) {
  return guarded([&] {
    diglot::Launch how{static_cast<unsigned>(blocks), kThreads};
    how.shared_bytes = columns * sizeof(float);
    diglot::launch<softmax_kernel>(how, static_cast<cudaStream_t>(stream), rows, columns, x, out);
  });
}

// How many blocks the GPU holds at once.
LESSON resident(int columns, int* blocks, void*) {
  return guarded([&] {
    *blocks = diglot::resident_blocks<softmax_kernel>(kThreads, columns * sizeof(float));
  });
}
