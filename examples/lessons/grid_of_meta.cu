// Scales an array by whatever grid it is given: a grid-stride loop. For grid_of_meta.py.
#include "lesson.h"

__global__ void scale_kernel(int n, const float* x, float* out, int* count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    out[i] = 2 * x[i];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *count = gridDim.x;
}

LESSON scale(int blocks, int threads, int n, const float* x, float* out, int* count, void* stream) {
  return guarded([&] {
    diglot::launch<scale_kernel>(blocks, threads, static_cast<cudaStream_t>(stream), n, x, out,
                                 count);
  });
}

// The block size with the most occupancy, and how many such blocks fill the GPU.
LESSON suggest(int* blocks, int* threads, void*) {
  return guarded([&] {
#if !defined(DIGLOT_INTERPRETER)
    diglot::check(cudaOccupancyMaxPotentialBlockSize(blocks, threads, scale_kernel),
                  "asking for a block size");
#else
    *threads = 1024;
    *blocks = diglot::resident_blocks<scale_kernel>(*threads);
#endif
  });
}
