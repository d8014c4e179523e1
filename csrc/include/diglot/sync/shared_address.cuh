// 32-bit addresses of shared memory, which PTX takes: within a block's window, or a cluster's.
#pragma once

#include "diglot/platform.cuh"

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/asynchronous.h"
#endif

namespace diglot {

// The address of this block's shared memory. Dynamic shared memory begins at a multiple of 1024.
DIGLOT_DEVICE uint32_t shared_address(const void* shared,
                                      [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  return interpreter::shared_address(shared, place);
#elif defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#else
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(shared));
#endif
}

// The corresponding address in the block of this rank in the cluster. PTX ISA, "mapa".
DIGLOT_DEVICE uint32_t cluster_address(uint32_t address, [[maybe_unused]] uint32_t rank,
                                       [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  return interpreter::cluster_address(address, rank, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
#else
  return address;
#endif
}

}  // namespace diglot
