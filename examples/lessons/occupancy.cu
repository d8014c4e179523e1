// A kernel that says when each of its blocks ran, and where: occupancy as it was achieved.
#include "lesson.h"

namespace {

__device__ long long now() {
#if defined(__CUDA_ARCH__)
  long long nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
#else
  return 0;
#endif
}

// spans[block] = {begin, end}, in nanoseconds of a clock that all SMs share.
__global__ void busy_kernel(int rounds, long long* spans, float* out) {
  extern __shared__ float scratch[];
  const long long begin = now();
  scratch[threadIdx.x] = static_cast<float>(threadIdx.x);
  float value = scratch[threadIdx.x];
  for (int i = 0; i < rounds; ++i) value = value * 0.5f + 1.0f;
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    spans[2 * blockIdx.x] = begin;
    spans[2 * blockIdx.x + 1] = now();
  }
}

}  // namespace

LESSON busy(int blocks, int threads, int shared_bytes, int rounds, long long* spans, float* out,
            void* stream) {
  return guarded([&] {
    diglot::Launch how{static_cast<unsigned>(blocks), static_cast<unsigned>(threads)};
    how.shared_bytes = shared_bytes;
    diglot::launch<busy_kernel>(how, static_cast<cudaStream_t>(stream), rounds, spans, out);
  });
}

// How many blocks of such a launch the runtime says that one SM holds.
LESSON resident(int threads, int shared_bytes, int* blocks, void*) {
  return guarded([&] {
    *blocks =
        diglot::resident_blocks<busy_kernel>(threads, shared_bytes) / diglot::multiprocessors();
  });
}
