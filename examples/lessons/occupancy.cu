// A kernel whose warps note where and when they ran: occupancy as it was achieved. Twin of the
// Triton kernel in occupancy.py.
#include "lesson.h"

namespace {

__device__ long long now() {
#if defined(__CUDA_ARCH__)
  long long nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
#else
  return 0;  // the interpreter has no such clock
#endif
}

// notes[warp] = {SM, begin, end}, in nanoseconds of a clock that all SMs share.
__global__ void busy_kernel(int rounds, long long* notes, float* out) {
  const long long begin = now();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float value = static_cast<float>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) value = value * 0.5f + 1.0f;
  out[i] = value;
  const long long end = now();
  if (i % 32 == 0) {
    long long* const mine = notes + 3 * (i / 32);
    mine[0] = multiprocessor_id();
    mine[1] = begin;
    mine[2] = end;
  }
}

}  // namespace

// The kernel needs no shared memory. A block takes it, so that fewer fit on an SM.
LESSON busy(int blocks, int threads, int shared_bytes, int rounds, long long* notes, float* out,
            void* stream) {
  return guarded([&] {
    diglot::Launch how{static_cast<unsigned>(blocks), static_cast<unsigned>(threads)};
    how.shared_bytes = shared_bytes;
    diglot::launch<busy_kernel>(how, static_cast<cudaStream_t>(stream), rounds, notes, out);
  });
}
