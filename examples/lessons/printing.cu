// Prints from inside a kernel. Twin of the kernel in printing.py.
#include <cstdio>

#include "lesson.h"

__global__ void look_kernel(int n, const float* x) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  // Without a condition every thread prints, millions of lines: ask for the elements in question.
  if (i < n && !(x[i] >= 0)) printf("block %d thread %d: x = %g\n", blockIdx.x, threadIdx.x, x[i]);
}

LESSON look(int n, const float* x, void* stream) {
  return guarded([&] {
    diglot::launch<look_kernel>(diglot::blocks_for(n, 4), 4, static_cast<cudaStream_t>(stream), n,
                                x);
  });
}
