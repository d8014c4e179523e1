// Each warp writes which multiprocessor and which of its warp slots it runs on. Twin of the Triton
// kernel in hierarchy.py.
#include "lesson.h"

namespace {

__device__ unsigned warp_slot() {
#if defined(__CUDA_ARCH__)
  unsigned slot;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(slot));
  return slot;
#else
  return threadIdx.x / 32;
#endif
}

// places[block][warp] = {multiprocessor, slot, first thread of the warp}; before and after work.
__global__ void where_kernel(int rounds, int* places, int* later) {
  const int warp = threadIdx.x / 32;
  const int at = 3 * (blockIdx.x * (blockDim.x / 32) + warp);
  if (threadIdx.x % 32 == 0) {
    places[at] = multiprocessor_id();
    places[at + 1] = warp_slot();
    places[at + 2] = threadIdx.x;
  }
  unsigned value = threadIdx.x;
  for (int i = 0; i < rounds; ++i) value = value * 1664525u + 1013904223u;
  // No value equals it: the loop is kept, and the block stays for a while.
  if (threadIdx.x % 32 == 0) later[at / 3] = multiprocessor_id() + (value == 1 ? 1 << 20 : 0);
}

}  // namespace

LESSON where(int blocks, int threads, int rounds, int* places, int* later, void* stream) {
  return guarded([&] {
    diglot::launch<where_kernel>(blocks, threads, static_cast<cudaStream_t>(stream), rounds, places,
                                 later);
  });
}
