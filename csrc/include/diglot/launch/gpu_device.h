// A GPU, described by the CUDA runtime, and launches on it.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <tuple>

#include "diglot/launch/device.h"

namespace diglot {

// RAII: switches this thread to relaxed stream-capture mode, so that it may load code, or make
// events and wait for them, while another thread captures a graph.
class RelaxedCaptureScope {
 public:
  RelaxedCaptureScope() { check(exchange(), "cudaThreadExchangeStreamCaptureMode"); }
  ~RelaxedCaptureScope() { exchange(); }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  cudaError_t exchange() { return cudaThreadExchangeStreamCaptureMode(&mode_); }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

template <auto kKernel>
Kernel kernel_of() {
  return {&typeid(KernelTag<kKernel>), reinterpret_cast<const void*>(kKernel)};
}

// The attributes of a launch, and the configuration that points to them.
struct LaunchConfig {
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};

  LaunchConfig(const Launch& how, cudaStream_t stream) {
    if (how.cluster_blocks > 1) {
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = how.cluster_blocks;
      attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    } else {
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    config.gridDim = how.grid;
    config.blockDim = how.block;
    config.dynamicSmemBytes = how.shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

class GpuDevice final : public Device {
 public:
  // The current device.
  static const GpuDevice& current() {
    constexpr int kMost = 64;
    static std::array<std::atomic<const GpuDevice*>, kMost> devices{};
    int index = 0;
    check(cudaGetDevice(&index), "cudaGetDevice");
    if (index >= kMost) throw std::runtime_error("diglot knows 64 devices at most");
    const GpuDevice* known = devices[index].load(std::memory_order_acquire);
    if (known == nullptr) {  // never destroyed: launches may follow static destruction
      const auto* const made = new GpuDevice(index);
      if (devices[index].compare_exchange_strong(known, made)) return *made;
      delete made;
    }
    return *known;
  }

  int index() const { return index_; }
  int architecture() const override { return architecture_; }
  int multiprocessors() const override { return multiprocessors_; }
  int shared_bytes() const override { return shared_bytes_; }
  bool has_clusters() const override { return has_clusters_; }
  std::shared_ptr<const Tunables> tunables() const override { return tunables_of(index_); }

  int resident_blocks(const Kernel& kernel, int block_threads,
                      std::size_t shared_bytes) const override {
    if (!is_cooperative_) {
      throw std::runtime_error(
          "this device launches no kernel co-operatively, so that blocks could wait for each "
          "other");
    }
    Launch how;
    how.shared_bytes = shared_bytes;
    prepare(kernel, how);
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel.code, block_threads,
                                                        shared_bytes),
          "asking for a kernel's occupancy");
    return multiprocessors_ * blocks;
  }

  int resident_clusters(const Kernel& kernel, const Launch& how) const override {
    if (!has_clusters_) return 0;
    prepare(kernel, how);
    const LaunchConfig launch(how, nullptr);
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, kernel.code, &launch.config),
          "asking for the clusters that run at once");
    return clusters;
  }

  // Loads the kernel's code, which is lazy. Opts in to dynamic shared memory beyond the default
  // limit, and to clusters beyond the portable size. The limits only grow, since launches of other
  // sizes are prepared too.
  void prepare(const Kernel& kernel, const Launch& how) const override {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const RelaxedCaptureScope scope;
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel.code), "loading a kernel");
    const int bytes = static_cast<int>(how.shared_bytes);
    const int allowed = attributes.maxDynamicSharedSizeBytes;
    if (bytes + static_cast<int>(attributes.sharedSizeBytes) > allowed) {
      check(cudaFuncSetAttribute(kernel.code, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 std::max(bytes, allowed)),
            "asking for dynamic shared memory");
    }
    if (how.cluster_blocks > kPortableClusterBlocks) {
      check(cudaFuncSetAttribute(kernel.code, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
            "asking for a large cluster");
    }
  }

 private:
  explicit GpuDevice(int index)
      : index_(index),
        architecture_(10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                      attribute(cudaDevAttrComputeCapabilityMinor)),
        multiprocessors_(attribute(cudaDevAttrMultiProcessorCount)),
        shared_bytes_(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)),
        has_clusters_(attribute(cudaDevAttrClusterLaunch) != 0),
        is_cooperative_(attribute(cudaDevAttrCooperativeLaunch) != 0) {}

  int attribute(cudaDeviceAttr which) const {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, index_), "asking for a device attribute");
    return value;
  }

  int index_;
  int architecture_, multiprocessors_, shared_bytes_;
  bool has_clusters_, is_cooperative_;
};

inline const Device& current_device() { return GpuDevice::current(); }

// Prepares a kernel. A kernel that was prepared before takes only a look at a bit.
template <auto kKernel>
void prepare_again(const Launch& how) {
  constexpr std::size_t kAlwaysAllowed = 16 * 1024;
  static std::atomic<uint64_t> prepared{0};  // one bit per device
  const GpuDevice& device = GpuDevice::current();
  const uint64_t bit = uint64_t{1} << device.index();
  const bool is_plain =
      how.shared_bytes <= kAlwaysAllowed && how.cluster_blocks <= kPortableClusterBlocks;
  if (is_plain && (prepared.load(std::memory_order_relaxed) & bit) != 0) return;
  device.prepare(kernel_of<kKernel>(), how);
  prepared.fetch_or(bit, std::memory_order_relaxed);
}

[[noreturn]] inline void refuse_grid(const Kernel& kernel, const Launch& how) {
  static_cast<void>(cudaGetLastError());  // clears the error, which is reported here
  const unsigned threads = how.threads();
  const auto blocks = static_cast<uint64_t>(how.grid.x) * how.grid.y * how.grid.z;
  const int resident =
      GpuDevice::current().resident_blocks(kernel, static_cast<int>(threads), how.shared_bytes);
  throw std::invalid_argument(
      "launching " + kernel.name() + ": its blocks wait for each other, " + std::to_string(blocks) +
      " of them were asked for, and of " + std::to_string(threads) + " threads and " +
      std::to_string(how.shared_bytes) + " bytes of dynamic shared memory this device runs " +
      std::to_string(resident) + " at once");
}

// Starts a prepared kernel on a stream of the current device. `values` have the types of its
// parameters.
template <auto kKernel, typename... Parameters>
void start(const Launch& how, cudaStream_t stream, std::tuple<Parameters...>& values) {
  const auto code = reinterpret_cast<const void*>(kKernel);
  cudaError_t status = cudaSuccess;
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)...};
        if (how.cluster_blocks > 1 || how.uses_pdl) {
          const LaunchConfig launch(how, stream);
          status = cudaLaunchKernelExC(&launch.config, code, pointers);
        } else if (how.is_cooperative) {
          status = cudaLaunchCooperativeKernel(code, how.grid, how.block, pointers,
                                               how.shared_bytes, stream);
        } else {
          status = cudaLaunchKernel(code, how.grid, how.block, pointers, how.shared_bytes, stream);
        }
      },
      values);
  if (status == cudaErrorCooperativeLaunchTooLarge) refuse_grid(kernel_of<kKernel>(), how);
  check(status, "launching a kernel");
}

}  // namespace diglot
