// Dropout with a seed for each row, and a sparse random projection. Twin of random_rows.py.
#include "diglot/philox.cuh"
#include "lesson.h"

namespace {

constexpr int kThreads = 128;

// A block drops out a row: it keeps the elements whose 32 random bits are not below `threshold`.
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(int columns, float scale, int64_t threshold, const int64_t* seeds,
                   const float* x, float* out) {
  const diglot::PhiloxKeys keys = diglot::philox_keys(static_cast<uint64_t>(seeds[blockIdx.x]));
  const int64_t first = static_cast<int64_t>(blockIdx.x) * columns;
  for (int i = threadIdx.x; i < columns; i += kThreads) {
    const uint32_t bits = diglot::random_bits<1>(keys, 0, i)[0];
    out[first + i] = bits >= threshold ? x[first + i] * scale : 0.0f;
  }
}

// A warp makes an element of the projection: a sixth of the matrix is +1, a sixth is -1.
__global__ void __launch_bounds__(32)
    project_kernel(int columns, float scale, int64_t sixth, const int64_t* seeds, const float* x,
                   float* out) {
  const diglot::PhiloxKeys keys = diglot::philox_keys(static_cast<uint64_t>(seeds[blockIdx.x]));
  const float* const row = x + static_cast<int64_t>(blockIdx.y) * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += 32) {
    const uint32_t bits = diglot::random_bits<1>(keys, 0, i)[0];
    if (bits < sixth) sum += row[i];
    if (bits >= 5 * sixth) sum -= row[i];
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x == 0) out[blockIdx.y * gridDim.x + blockIdx.x] = sum * scale;
}

}  // namespace

LESSON dropout(int rows, int columns, float p, const int64_t* seeds, const float* x, float* out,
               void* stream) {
  return guarded([&] {
    const auto threshold = static_cast<int64_t>(static_cast<double>(p) * 4294967296.0);
    diglot::launch<dropout_kernel>(rows, kThreads, static_cast<cudaStream_t>(stream), columns,
                                   1 / (1 - p), threshold, seeds, x, out);
  });
}

LESSON project(int rows, int columns, int features, const int64_t* seeds, const float* x,
               float* out, void* stream) {
  return guarded([&] {
    const dim3 grid(features, rows);
    diglot::launch<project_kernel>(grid, 32, static_cast<cudaStream_t>(stream), columns,
                                   std::sqrt(3.0f / features), int64_t{4294967296} / 6, seeds, x,
                                   out);
  });
}
