// Host side of a launch that is not planned beforehand: the one function through which a kernel is
// started. Launchers of this package plan first (plan.h).
#pragma once

#include <algorithm>
#include <tuple>

#if defined(DIGLOT_INTERPRETER)
#include "diglot/launch/interpreted_device.h"
#else
#include "diglot/launch/gpu_device.h"
#endif

namespace diglot {

// Of the current device.
inline int multiprocessors() { return current_device().multiprocessors(); }

// Bytes of shared memory on each multiprocessor of the current device.
inline int multiprocessor_shared_bytes() { return current_device().shared_bytes(); }

// The greatest grid whose blocks all run at once on the current device, as blocks that wait for
// each other must. 0 if not even one fits.
template <auto kKernel>
int resident_blocks(int block_threads, std::size_t shared_bytes = 0) {
  return current_device().resident_blocks(kernel_of<kKernel>(), block_threads, shared_bytes);
}

// How many clusters of such a launch run at once on the current device: 0 if not even one fits.
template <auto kKernel>
int resident_clusters(const Launch& how) {
  return current_device().resident_clusters(kernel_of<kKernel>(), how);
}

// Starts kKernel on `stream` of the current device. Arguments convert to the kernel's own types.
// Returns false, and starts nothing, if there is no room for a launch that is persistent or may be
// skipped.
template <auto kKernel, typename... Parameters, typename... Arguments>
bool launch_as(void (*)(Parameters...), Launch how, cudaStream_t stream,
               const Arguments&... arguments) {
  if (!current_device().fit(kernel_of<kKernel>(), how)) return false;
  prepare_again<kKernel>(how);
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  start<kKernel>(how, stream, values);
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

// A grid of at most `most` blocks, all resident at once, at most `per_multiprocessor` per SM. The
// blocks may wait for each other.
inline Launch cooperative_launch(const Device& device, const Kernel& kernel, int64_t most,
                                 int per_multiprocessor, int block_threads,
                                 std::size_t shared_bytes) {
  const int blocks = std::min(device.resident_blocks(kernel, block_threads, shared_bytes),
                              per_multiprocessor * device.multiprocessors());
  most = std::clamp<int64_t>(most, 1, std::max(blocks, 1));
  Launch how{static_cast<unsigned>(most), static_cast<unsigned>(block_threads)};
  how.shared_bytes = shared_bytes;
  how.is_cooperative = true;
  return how;
}

// Starts a cooperative launch of such a grid. The kernel shares out its work by gridDim.x.
template <auto kKernel, typename... Arguments>
void launch_cooperatively(int64_t most, int per_multiprocessor, int block_threads,
                          std::size_t shared_bytes, cudaStream_t stream,
                          const Arguments&... arguments) {
  launch<kKernel>(cooperative_launch(current_device(), kernel_of<kKernel>(), most,
                                     per_multiprocessor, block_threads, shared_bytes),
                  stream, arguments...);
}

// Blocks that cover n items.
inline unsigned int blocks_for(int64_t n, int64_t items_per_block) {
  return static_cast<unsigned int>((n + items_per_block - 1) / items_per_block);
}

}  // namespace diglot
