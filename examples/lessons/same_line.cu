// Many blocks write to one line of memory, or each to its own. Twin of the kernels in same_line.py.
#include "lesson.h"

namespace {

// Block b writes element b * stride, over and over. By atomics the writes are counted.
template <bool kAtomic>
__global__ void write_kernel(int rounds, int stride, int* out) {
  int* const mine = out + static_cast<int64_t>(blockIdx.x) * stride;
  for (int round = 1; round <= rounds; ++round) {
    if constexpr (kAtomic) {
      atomicAdd(mine, 1);
    } else {
      *static_cast<volatile int*>(mine) = round;
    }
  }
}

}  // namespace

LESSON write(int is_atomic, int blocks, int rounds, int stride, int* out, void* stream) {
  return guarded([&] {
    const auto on = static_cast<cudaStream_t>(stream);
    if (is_atomic) {
      diglot::launch<write_kernel<true>>(blocks, 1, on, rounds, stride, out);
    } else {
      diglot::launch<write_kernel<false>>(blocks, 1, on, rounds, stride, out);
    }
  });
}
