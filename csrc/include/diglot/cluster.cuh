// Clusters: blocks that run at once on neighbouring multiprocessors, and reach each other's shared
// memory. Of compute capability 9.0; launch.cuh starts them. PTX ISA, "barrier.cluster", "mapa".
#pragma once

#include <cstring>

#include "diglot/platform.cuh"

namespace diglot {

// Blocks of a cluster, at most: more than every device has.
constexpr int kMostClusterBlocks = 16;

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

// What each block of a cluster tells all of them, time after time: in shared memory. A barrier of
// the cluster would wait for all that its threads have stored in global memory; here a message
// arrives by itself, and whoever waits for it waits for nothing else. PTX ISA, "st.async",
// "mbarrier".
template <typename T, int kMostBlocks>
class ClusterMessages {
 public:
  // All threads of all blocks call it once, before the first exchange.
  DIGLOT_DEVICE void open() {
    begin();
    cluster_wait();
  }
  // The same in two steps: cluster_wait is to follow. It orders nothing but what it does itself,
  // and so waits for no access to memory that is under way.
  DIGLOT_DEVICE void begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (int turn = 0; turn < 2; ++turn) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                     :
                     : "r"(own(&arrived_[turn]))
                     : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
#endif
  }

  // Sends thread 0's value to all of the cluster's blocks, and returns when theirs are here. All
  // threads call it, with the number of the exchange, from 0 on. Before they call it, they have
  // read what they need of the exchange before the last, and met at a barrier since then.
  DIGLOT_DEVICE void exchange(const T& value, int rank, int blocks, unsigned number) {
    const unsigned turn = number % 2;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    constexpr int kWords = sizeof(T) / sizeof(uint32_t);
    const uint32_t arrived = own(&arrived_[turn]);
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :
                   : "r"(arrived), "r"(blocks * static_cast<int>(sizeof(T)))
                   : "memory");
    }
    if (static_cast<int>(threadIdx.x) < blocks) {
      uint32_t words[kWords];
      memcpy(words, &value, sizeof(value));
      const uint32_t to = of_rank(own(&received_[turn][rank]), threadIdx.x);
      const uint32_t told = of_rank(arrived, threadIdx.x);
      DIGLOT_UNROLL
      for (int i = 0; i < kWords; ++i) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                     :
                     : "r"(to + 4 * i), "r"(words[i]), "r"(told)
                     : "memory");
      }
    }
    uint32_t is_here = 0;
    while (is_here == 0) {
      asm volatile(
          "{\n"
          ".reg .pred here;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 here, [%1], %2;\n"
          "selp.u32 %0, 1, 0, here;\n"
          "}\n"
          : "=r"(is_here)
          : "r"(arrived), "r"(number / 2 % 2)
          : "memory");
    }
#else
    if (threadIdx.x == 0) received_[turn][rank] = value;
    cluster_sync();
#endif
  }

  // What the block of this rank sent.
  DIGLOT_DEVICE const T& received(int rank, unsigned number) const {
    const T* const here = &received_[number % 2][rank];
#if defined(DIGLOT_INTERPRETER)
    return *at_rank(here, rank);
#else
    return *here;
#endif
  }

 private:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  DIGLOT_DEVICE static uint32_t own(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  DIGLOT_DEVICE static uint32_t of_rank(uint32_t own, uint32_t rank) {
    uint32_t result;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(own), "r"(rank));
    return result;
  }
#endif

  T received_[2][kMostBlocks];
  uint64_t arrived_[2];
};

}  // namespace diglot
