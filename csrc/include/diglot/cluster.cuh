// Clusters: blocks that run at once on neighbouring multiprocessors, and reach each other's shared
// memory. Of compute capability 9.0; launch.cuh starts them. PTX ISA, "barrier.cluster", "mapa".
#pragma once

#include "diglot/platform.cuh"

namespace diglot {

// Arrives at the cluster's barrier, with what the thread has written to shared memory, and goes on.
// All threads of all blocks of the cluster call it, and then cluster_wait.
DIGLOT_DEVICE void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
#endif
}

// Waits until all have arrived.
DIGLOT_DEVICE void cluster_wait() {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
#endif
#elif defined(DIGLOT_INTERPRETER)
  interpreter::cluster_barrier(interpreter::Place::here());
#endif
}

DIGLOT_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Where the block of this rank has what this block has at an address of its own shared memory. No
// block may end while others read there.
template <typename T>
DIGLOT_DEVICE const T* at_rank(const T* shared, int rank) {
#if defined(DIGLOT_INTERPRETER)
  return static_cast<const T*>(
      interpreter::shared_of_rank(shared, rank, interpreter::Place::here()));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint64_t result;
  asm volatile("mapa.u64 %0, %1, %2;"
               : "=l"(result)
               : "l"(reinterpret_cast<uint64_t>(shared)), "r"(rank));
  return reinterpret_cast<const T*>(result);
#else
  return shared;
#endif
}

}  // namespace diglot
