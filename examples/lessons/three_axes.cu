// out[z][y][x] = in[x][y][z], blocks and threads on three axes. Twin of the kernel in
// three_axes.py.
#include "lesson.h"

__global__ void reverse_axes_kernel(int depth, int height, int width, const float* in, float* out,
                                    int* places) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  const int z = blockIdx.z * blockDim.z + threadIdx.z;
  if (x < width && y < height && z < depth) {
    out[(z * height + y) * width + x] = in[(x * height + y) * depth + z];
  }
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    places[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = blockIdx.y;
  }
}

LESSON reverse_axes(int depth, int height, int width, const float* in, float* out, int* places,
                    void* stream) {
  return guarded([&] {
    const dim3 block(16, 4, 4);  // 256 threads; x is the axis of a warp's neighbours
    const dim3 grid(diglot::blocks_for(width, block.x), diglot::blocks_for(height, block.y),
                    diglot::blocks_for(depth, block.z));
    diglot::launch<reverse_axes_kernel>(grid, block, static_cast<cudaStream_t>(stream), depth,
                                        height, width, in, out, places);
  });
}
