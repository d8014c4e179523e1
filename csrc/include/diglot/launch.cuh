// Host side of a launch: error checks, the current device, and the one function through which
// every kernel is started.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>
#include <tuple>

#include "diglot/platform.cuh"

namespace diglot {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status) + " (" +
                             cudaGetErrorName(status) + ")");
  }
}

// Makes `device` current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ != device) {
      check(cudaSetDevice(device), "cudaSetDevice");
      changed_ = true;
    }
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// Loads a kernel's code on the current device. Code is loaded lazily, and loading is not allowed in
// a stream capture, so the first call inside a capture relaxes the thread's capture mode for it.
inline void load_kernel(const void* kernel) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  check(status, "loading a kernel");
}

// Starts kKernel on `stream` of the current device. Arguments convert to the kernel's own types.
template <auto kKernel, typename... Parameters, typename... Arguments>
void launch_as(void (*)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
               const Arguments&... arguments) {
  static std::atomic<uint64_t> loaded{0};  // one bit per device
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (!(loaded.load(std::memory_order_relaxed) & bit)) {
    load_kernel(reinterpret_cast<const void*>(kKernel));
    loaded.fetch_or(bit, std::memory_order_relaxed);
  }
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)...};
        check(cudaLaunchKernel(reinterpret_cast<const void*>(kKernel), grid, block, pointers, 0,
                               stream),
              "launching a kernel");
      },
      values);
}

template <auto kKernel, typename... Arguments>
void launch(dim3 grid, dim3 block, cudaStream_t stream, const Arguments&... arguments) {
  launch_as<kKernel>(kKernel, grid, block, stream, arguments...);
}

// The kernel variant that the last launcher on this thread chose, by name.
inline const char*& last_variant() {
  static thread_local const char* name = "";
  return name;
}

// Blocks that cover n items.
inline unsigned int blocks_for(int64_t n, int64_t items_per_block) {
  return static_cast<unsigned int>((n + items_per_block - 1) / items_per_block);
}

}  // namespace diglot
