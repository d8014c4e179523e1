// A whole CUDA program: memory of the GPU taken, filled, copied, used and given back, each call
// checked. It prints a line for each step. device_memory.py compiles and runs it.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

// A call returns its status, and most programs that misbehave have ignored one. Ends the program.
#define CHECK(CALL)                                                                           \
  do {                                                                                        \
    const cudaError_t status = CALL;                                                          \
    std::printf("%s\t%s\n", #CALL, cudaGetErrorName(status));                                 \
    if (status != cudaSuccess) {                                                              \
      std::fprintf(stderr, "line %d: %s: %s\n", __LINE__, #CALL, cudaGetErrorString(status)); \
      std::exit(1);                                                                           \
    }                                                                                         \
  } while (false)

__global__ void add_one(int n, float* values) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += 1;
}

int main() {
  constexpr int n = 1000;  // no multiple of the block
  constexpr size_t bytes = n * sizeof(float);
  std::vector<float> host(n);
  for (int i = 0; i < n; ++i) host[i] = static_cast<float>(i);

  float* device = nullptr;
  CHECK(cudaMalloc(&device, bytes));
  CHECK(cudaMemset(device, 0xff, bytes));  // bytes, not floats: every one is a NaN now
  CHECK(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice));
  add_one<<<(n + 255) / 256, 256>>>(n, device);
  CHECK(cudaGetLastError());       // what the launch said: it returns nothing itself
  CHECK(cudaDeviceSynchronize());  // what the kernel said: it ran after the launch returned
  CHECK(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int i = 0; i < n; ++i) wrong += host[i] != static_cast<float>(i) + 1;
  std::printf("wrong elements\t%d\n", wrong);

  // Two errors on purpose. Neither breaks the program: a later launch works again.
  void* too_much = nullptr;
  std::printf("cudaMalloc of 2^60 bytes\t%s\n",
              cudaGetErrorName(cudaMalloc(&too_much, 1ull << 60)));
  static_cast<void>(cudaGetLastError());  // the error stays to be asked for until it is
  add_one<<<1, 2048>>>(n, device);        // more threads than a block may have
  std::printf("a block of 2048 threads\t%s\n", cudaGetErrorName(cudaGetLastError()));
  CHECK(cudaGetLastError());
  CHECK(cudaFree(device));
  return wrong == 0 ? 0 : 1;
}
