// Host side of a launch: error checks, and the one function through which every kernel is started.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <typeinfo>
#include <vector>

#include "diglot/platform.cuh"

namespace diglot {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status) + " (" +
                             cudaGetErrorName(status) + ")");
  }
}

#if !defined(DIGLOT_INTERPRETER)
// While one lives, its thread may do what is no part of a graph and would be an error while another
// thread captures one, which CUDA would also end: to load code, to make events or to wait for them.
class BesideCaptures {
 public:
  BesideCaptures() { check(exchange(), "cudaThreadExchangeStreamCaptureMode"); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaError_t exchange() { return cudaThreadExchangeStreamCaptureMode(&mode_); }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Loads a kernel's code on the current device. Code is loaded lazily, and loading is not allowed in
// a stream capture.
inline void load_kernel(const void* kernel) {
  const BesideCaptures beside;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
}

// The same, once for each device.
template <auto kKernel>
void ensure_loaded() {
  static std::atomic<uint64_t> loaded{0};  // one bit per device
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (loaded.load(std::memory_order_relaxed) & bit) return;
  load_kernel(reinterpret_cast<const void*>(kKernel));
  loaded.fetch_or(bit, std::memory_order_relaxed);
}

// More shared memory than every device has, of which a kernel may have some besides, must be asked
// for beforehand.
inline void allow_shared_bytes(const void* kernel, std::size_t bytes) {
  constexpr std::size_t kAlwaysAllowed = 16 * 1024;
  if (bytes <= kAlwaysAllowed) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "asking for dynamic shared memory");
}

// Functions of one type, where CUDA has overloads.
inline cudaError_t start_plainly(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                 std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
inline cudaLaunchConfig_t cluster_config(dim3 grid, dim3 block, unsigned blocks,
                                         cudaLaunchAttribute& attribute, std::size_t shared_bytes,
                                         cudaStream_t stream) {
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = blocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return config;
}
inline cudaError_t start_clusters(const void* kernel, dim3 grid, dim3 block, unsigned blocks,
                                  void** arguments, std::size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  const auto config = cluster_config(grid, block, blocks, attribute, shared_bytes, stream);
  return cudaLaunchKernelExC(&config, kernel, arguments);
}
inline cudaError_t start_early(const void* kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}
inline cudaError_t start_cooperatively(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                       std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchCooperativeKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
#endif

// A launch that was recorded instead of made.
struct RecordedLaunch {
  std::string
      kernel;  // as its symbol reads once demangled, such as "void diglot::scale<float>(int)"
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes;  // of dynamic shared memory
  unsigned cluster_blocks;   // 1: no clusters
};

// What launchers ask of the device that their launches are recorded for, which need not be there.
struct RecordedDevice {
  int multiprocessors;
  int shared_bytes;  // of each multiprocessor
  bool has_clusters;
};

// While one lives, launch<kernel> on its thread starts nothing and calls nothing of the CUDA
// runtime: what it would start is listed here. Twin of record_launches in triton_ops/launch.py.
class Recording {
 public:
  explicit Recording(const RecordedDevice& device) : device(device), outer_(innermost()) {
    innermost() = this;
  }
  ~Recording() { innermost() = outer_; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // The one that lists this thread's launches; null where they are made.
  static Recording*& innermost() {
    static thread_local Recording* recording = nullptr;
    return recording;
  }

  const RecordedDevice device;
  std::vector<RecordedLaunch> launches;

 private:
  Recording* outer_;
};

// Its type's name holds that of the kernel.
template <auto kKernel>
struct KernelTag {};

// The demangled name of a KernelTag's kernel. The host's symbol of a kernel would say no more: it
// is of internal linkage, and so mangled otherwise than the device's.
inline std::string kernel_name(const std::type_info& tag) {
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(tag.name(), nullptr, nullptr, nullptr), std::free);
  if (text == nullptr) return tag.name();
  // "diglot::KernelTag<&(void diglot::scale<float>(int))>"; without the brackets if no template.
  std::string name(text.get());
  name = name.substr(name.find('&') + 1);
  name.pop_back();
  return name.front() == '(' ? name.substr(1, name.size() - 2) : name;
}

// What a kernel is started with, besides its arguments.
struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // of dynamic shared memory
  bool is_cooperative = false;   // all blocks at once, or an error: they may wait for each other
  unsigned cluster_blocks = 1;   // neighbours in x that run at once as a cluster (cluster.cuh)
  bool begins_early = false;     // while the launch before it ends (next_launch.cuh)
  bool stays = false;            // only as many blocks as run at once, which take work in turns
  bool tries = false;  // not started where there is no room for its cluster: no error then
};

#if !defined(DIGLOT_INTERPRETER)
// Of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, attribute, device), "asking for a device attribute");
  return value;
}
#endif

// Of the current device.
inline int multiprocessors() {
#if defined(DIGLOT_INTERPRETER)
  return interpreter::kMultiprocessors;
#else
  if (const Recording* const recording = Recording::innermost()) {
    return recording->device.multiprocessors;
  }
  return device_attribute(cudaDevAttrMultiProcessorCount);
#endif
}

// Of shared memory, on each multiprocessor of the current device.
inline int multiprocessor_shared_bytes() {
#if defined(DIGLOT_INTERPRETER)
  return static_cast<int>(interpreter::kMaxSharedBytes);
#else
  if (const Recording* const recording = Recording::innermost()) {
    return recording->device.shared_bytes;
  }
  return device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
#endif
}

#if !defined(DIGLOT_INTERPRETER)
inline bool can_begin_early() { return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9; }
#endif

// Blocks that a cluster may have on the current device, and on every device that has clusters.
constexpr int kPortableClusterBlocks = 8;
inline int max_cluster_blocks() {
#if defined(DIGLOT_INTERPRETER)
  return kPortableClusterBlocks;
#else
  return device_attribute(cudaDevAttrClusterLaunch) != 0 ? kPortableClusterBlocks : 1;
#endif
}

// Threads that wait for other blocks need all blocks of the grid to run at once: the greatest
// number of blocks for which that holds on the current device. 0 if not even one fits.
template <auto kKernel>
int resident_blocks(int block_threads, std::size_t shared_bytes = 0) {
#if defined(DIGLOT_INTERPRETER)
  return static_cast<int>(interpreter::resident_blocks(block_threads, shared_bytes));
#else
  if (device_attribute(cudaDevAttrCooperativeLaunch) == 0) {
    throw std::runtime_error(
        "this device launches no kernel co-operatively, so that blocks could wait for each other");
  }
  ensure_loaded<kKernel>();
  const void* const kernel = reinterpret_cast<const void*>(kKernel);
  allow_shared_bytes(kernel, shared_bytes);
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block_threads, shared_bytes),
        "asking for a kernel's occupancy");
  return multiprocessors() * blocks;
#endif
}

#if !defined(DIGLOT_INTERPRETER)
// A cluster of more blocks than every device has must be asked for beforehand.
inline void allow_cluster(const void* kernel, unsigned blocks) {
  if (blocks <= kPortableClusterBlocks) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "asking for a large cluster");
}
#endif

// Clusters of such a launch that run at once on the current device: 0 if not even one fits.
template <auto kKernel>
int resident_clusters(const Launch& how) {
#if defined(DIGLOT_INTERPRETER)
  return how.cluster_blocks <= interpreter::kMaxClusterBlocks ? 1 : 0;
#else
  if (const Recording* const recording = Recording::innermost()) {
    return recording->device.has_clusters ? 1 : 0;
  }
  if (device_attribute(cudaDevAttrClusterLaunch) == 0) return 0;
  ensure_loaded<kKernel>();
  const void* const kernel = reinterpret_cast<const void*>(kKernel);
  allow_shared_bytes(kernel, how.shared_bytes);
  allow_cluster(kernel, how.cluster_blocks);
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config =
      cluster_config(how.grid, how.block, how.cluster_blocks, attribute, how.shared_bytes, nullptr);
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
        "asking for the clusters that run at once");
  return clusters;
#endif
}

// Whether the current device runs clusters of that size: of up to eight blocks, if it has any.
template <auto kKernel>
bool has_room_for_cluster(const Launch& how) {
  if (how.cluster_blocks <= static_cast<unsigned>(max_cluster_blocks())) return true;
  return resident_clusters<kKernel>(how) > 0;
}

#if !defined(DIGLOT_INTERPRETER)
template <auto kKernel>
[[noreturn]] void refuse_grid(const Launch& how) {
  static_cast<void>(cudaGetLastError());  // it is told here
  const unsigned threads = how.block.x * how.block.y * how.block.z;
  const auto blocks = static_cast<uint64_t>(how.grid.x) * how.grid.y * how.grid.z;
  throw std::invalid_argument(
      "launching " + kernel_name(typeid(KernelTag<kKernel>)) +
      ": its blocks wait for each other, " + std::to_string(blocks) +
      " of them were asked for, and of " + std::to_string(threads) + " threads and " +
      std::to_string(how.shared_bytes) + " bytes of dynamic shared memory this device runs " +
      std::to_string(resident_blocks<kKernel>(static_cast<int>(threads), how.shared_bytes)) +
      " at once");
}
#endif

// Starts kKernel on `stream` of the current device. Arguments convert to the kernel's own types.
// False if nothing was started: a launch that stays or tries, and the device has no room for it.
template <auto kKernel, typename... Parameters, typename... Arguments>
bool launch_as(void (*)(Parameters...), Launch how, cudaStream_t stream,
               const Arguments&... arguments) {
  if (Recording* const recording = Recording::innermost()) {
    if (how.cluster_blocks > 1 && !recording->device.has_clusters) return false;
    recording->launches.push_back({kernel_name(typeid(KernelTag<kKernel>)), how.grid, how.block,
                                   how.shared_bytes, how.cluster_blocks});
    return true;
  }
  if (how.stays) {
    const int at_once = how.cluster_blocks > 1
                            ? resident_clusters<kKernel>(how) * static_cast<int>(how.cluster_blocks)
                            : resident_blocks<kKernel>(how.block.x, how.shared_bytes);
    if (at_once == 0) return false;
    how.grid.x = std::min(how.grid.x, static_cast<unsigned>(at_once));
  } else if (how.tries && !has_room_for_cluster<kKernel>(how)) {
    return false;
  }
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
#if defined(DIGLOT_INTERPRETER)
  interpreter::run({kernel_name(typeid(KernelTag<kKernel>)),
                    {how.grid.x, how.grid.y, how.grid.z},
                    {how.block.x, how.block.y, how.block.z},
                    how.shared_bytes,
                    how.is_cooperative,
                    how.cluster_blocks},
                   [values] { std::apply(kKernel, values); });
#else
  ensure_loaded<kKernel>();
  const void* const kernel = reinterpret_cast<const void*>(kKernel);
  allow_shared_bytes(kernel, how.shared_bytes);
  allow_cluster(kernel, how.cluster_blocks);
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)...};
        const auto start = how.is_cooperative                      ? &start_cooperatively
                           : how.begins_early && can_begin_early() ? &start_early
                                                                   : &start_plainly;
        const cudaError_t status =
            how.cluster_blocks > 1
                ? start_clusters(kernel, how.grid, how.block, how.cluster_blocks, pointers,
                                 how.shared_bytes, stream)
                : start(kernel, how.grid, how.block, pointers, how.shared_bytes, stream);
        if (status == cudaErrorCooperativeLaunchTooLarge) refuse_grid<kKernel>(how);
        check(status, "launching a kernel");
      },
      values);
#endif
  return true;
}

template <auto kKernel, typename... Arguments>
bool launch(const Launch& how, cudaStream_t stream, const Arguments&... arguments) {
  return launch_as<kKernel>(kKernel, how, stream, arguments...);
}

template <auto kKernel, typename... Arguments>
void launch(dim3 grid, dim3 block, cudaStream_t stream, const Arguments&... arguments) {
  launch_as<kKernel>(kKernel, Launch{grid, block}, stream, arguments...);
}

// Starts as many of `most` blocks, at most `per_multiprocessor` on each, as run at once, so that
// they may wait for each other. The kernel takes what work there is by gridDim.x.
template <auto kKernel, typename... Arguments>
void launch_cooperatively(int64_t most, int per_multiprocessor, int block_threads,
                          std::size_t shared_bytes, cudaStream_t stream,
                          const Arguments&... arguments) {
  int64_t blocks = 1;
  if (Recording::innermost() == nullptr) {  // there may be no device
    blocks = std::min(resident_blocks<kKernel>(block_threads, shared_bytes),
                      per_multiprocessor * multiprocessors());
  }
  blocks = std::clamp<int64_t>(most, 1, std::max<int64_t>(blocks, 1));
  Launch how{static_cast<unsigned>(blocks), static_cast<unsigned>(block_threads)};
  how.shared_bytes = shared_bytes;
  how.is_cooperative = true;
  launch<kKernel>(how, stream, arguments...);
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
