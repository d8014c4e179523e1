// Two kernels after each other. The second starts early. Twin of the kernel in pdl.py.
#include "diglot/sync/pdl.cuh"

#include "lesson.h"

namespace {

constexpr int kThreads = 256;

// out = 2 * in + weight. The weight is nobody's result: it is read before the kernel before ends.
__global__ void __launch_bounds__(kThreads)
    scale_kernel(int n, const float* in, const float* weight, float* out) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  const float added = i < n ? weight[i] : 0;
  diglot::launch_dependents();     // the next kernel's blocks may come as soon as there is room
  diglot::grid_dependency_wait();  // from here on the results of the kernel before are there
  if (i < n) out[i] = 2 * in[i] + added;
}

}  // namespace

// A chain of `kernels` kernels; `a` holds the first one's input, and a or b the last one's result.
LESSON chain(int uses_pdl, int kernels, int n, const float* weight, float* a, float* b,
             void* stream) {
  return guarded([&] {
    diglot::Launch how{diglot::blocks_for(n, kThreads), kThreads};
    how.uses_pdl = uses_pdl != 0;
    for (int kernel = 0; kernel < kernels; ++kernel) {
      diglot::launch<scale_kernel>(how, static_cast<cudaStream_t>(stream), n, a, weight, b);
      std::swap(a, b);
    }
  });
}
