// Facts of a device, and how a kernel starts on it: on a GPU (gpu_device.h) or on the interpreter
// (interpreted_device.h). A device that is only named (named_device.h) has facts alone, for
// planning.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "diglot/launch/tunables.h"
#include "diglot/platform.cuh"

namespace diglot {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status) + " (" +
                             cudaGetErrorName(status) + ")");
  }
}

// A type whose name holds the kernel's name.
template <auto kKernel>
struct KernelTag {};

// The demangled name of a KernelTag's kernel. The host's symbol of a kernel would not help: it has
// internal linkage, so its mangled name differs from the device's.
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

// A kernel, its type erased.
struct Kernel {
  const std::type_info* tag = nullptr;
  const void* code = nullptr;  // the CUDA runtime's handle; null where kernels are interpreted

  std::string name() const { return kernel_name(*tag); }
};

// The configuration of a launch.
struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic shared memory
  bool is_cooperative = false;   // all blocks at once, or an error: they may wait for each other
  unsigned cluster_blocks = 1;   // neighbours in x that run at once as a cluster (cluster.cuh)
  bool uses_pdl = false;         // programmatic dependent launch (sync/pdl.cuh)
  bool is_persistent = false;    // at most the blocks that run at once, which loop over the work
  bool skip_if_no_room = false;  // without room for a cluster, nothing starts and nothing fails

  unsigned threads() const { return block.x * block.y * block.z; }
};

// Blocks that a cluster may have on every device that has clusters.
constexpr int kPortableClusterBlocks = 8;

class Device {
 public:
  virtual ~Device() = default;

  // The compute capability times ten.
  virtual int architecture() const = 0;
  virtual int multiprocessors() const = 0;
  // Bytes of shared memory on each multiprocessor.
  virtual int shared_bytes() const = 0;
  virtual bool has_clusters() const = 0;
  // The measured numbers that planners use on it.
  virtual std::shared_ptr<const Tunables> tunables() const = 0;
  // The greatest grid whose blocks all run at once, as blocks that wait for each other must. 0 if
  // not even one fits.
  virtual int resident_blocks(const Kernel& kernel, int block_threads,
                              std::size_t shared_bytes) const = 0;
  // How many clusters of such a launch run at once: 0 if not even one fits.
  virtual int resident_clusters(const Kernel& kernel, const Launch& how) const = 0;
  // Prepares a kernel for such a launch. A stream capture may not allow it.
  virtual void prepare(const Kernel& kernel, const Launch& how) const = 0;

  // Fits a launch to the device. False if there is no room for a launch that is persistent or may
  // be skipped.
  bool fit(const Kernel& kernel, Launch& how) const {
    how.uses_pdl = how.uses_pdl && architecture() >= 90;
    if (how.is_persistent) {
      const int64_t most =
          how.cluster_blocks > 1
              ? int64_t{resident_clusters(kernel, how)} * how.cluster_blocks
              : resident_blocks(kernel, static_cast<int>(how.block.x), how.shared_bytes);
      if (most == 0) return false;
      how.grid.x = static_cast<unsigned>(std::min<int64_t>(how.grid.x, most));
      return true;
    }
    return !how.skip_if_no_room || has_room_for_cluster(kernel, how);
  }

 private:
  bool has_room_for_cluster(const Kernel& kernel, const Launch& how) const {
    if (how.cluster_blocks <= (has_clusters() ? kPortableClusterBlocks : 1u)) return true;
    return resident_clusters(kernel, how) > 0;
  }
};

}  // namespace diglot
