// A kernel that reads the same window of memory again and again, with a carve-out of its own.
#include "lesson.h"

namespace {

constexpr int kThreads = 1024;

// Each block sums its window `rounds` times. A block fills half an SM's threads.
__global__ void __launch_bounds__(kThreads)
    reread_kernel(int window, int rounds, const float* in, float* out) {
  const float* mine = in + static_cast<int64_t>(blockIdx.x) * window;
  float sum = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int i = threadIdx.x; i < window; i += kThreads) sum += __ldca(mine + i);
  }
  out[blockIdx.x * kThreads + threadIdx.x] = sum;
}

}  // namespace

// percent: how much of the memory that L1 and shared memory have together is to be shared memory.
LESSON reread(int percent, int blocks, int window, int rounds, const float* in, float* out,
              void* stream) {
  return guarded([&] {
#if !defined(DIGLOT_INTERPRETER)
    diglot::check(cudaFuncSetAttribute(reinterpret_cast<const void*>(reread_kernel),
                                       cudaFuncAttributePreferredSharedMemoryCarveout, percent),
                  "setting the carve-out");
#else
    static_cast<void>(percent);
#endif
    diglot::launch<reread_kernel>(blocks, kThreads, static_cast<cudaStream_t>(stream), window,
                                  rounds, in, out);
  });
}
