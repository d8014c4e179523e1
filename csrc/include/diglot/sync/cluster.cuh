// Thread block clusters: blocks that run at once on neighbouring SMs and reach each other's shared
// memory, which is then distributed shared memory (DSMEM). They need compute capability 9.0. A
// launch asks for them by Launch::cluster_blocks. PTX ISA, "barrier.cluster", "mapa".
#pragma once

#include <cstring>

#include "diglot/platform.cuh"

namespace diglot {

// The most blocks of a cluster. More than 8 are not portable: some devices have room for fewer.
constexpr int kMostClusterBlocks = 16;

// Arrives at the cluster's barrier without waiting, and releases the thread's writes to shared
// memory. All threads of all blocks of the cluster call it, and then cluster_wait.
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

// The address, in the shared memory of the block of this rank, that corresponds to an address in
// this block's shared memory. No block may end while others read there.
template <typename T>
DIGLOT_DEVICE const T* dsmem(const T* shared, int rank) {
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

// A mailbox in shared memory through which each block of a cluster repeatedly sends a value to all
// of them. A barrier of the cluster would also wait for the threads' stores to global memory. Here
// the values signal an mbarrier as they arrive, and a block waits for nothing else. PTX ISA,
// "st.async", "mbarrier".
template <typename T, int kMostBlocks>
class ClusterMailbox {
 public:
  // All threads of all blocks call it once, before the first exchange.
  DIGLOT_DEVICE void open() {
    begin();
    cluster_wait();
  }
  // The same without waiting: cluster_wait must follow. It orders only its own writes, so that it
  // waits for no memory access in flight.
  DIGLOT_DEVICE void begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (int turn = 0; turn < 2; ++turn) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                     :
                     : "r"(shared_address(&arrived_[turn]))
                     : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
#endif
  }

  // Sends thread 0's value to all blocks of the cluster, and returns when their values have
  // arrived. All threads call it with the number of the exchange, from 0 on. Slots are used in
  // turns: before the call, all threads have read the exchange before the last, and met at a
  // barrier since.
  DIGLOT_DEVICE void exchange(const T& value, int rank, int blocks, unsigned number) {
    const unsigned turn = number % 2;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    constexpr int kWords = sizeof(T) / sizeof(uint32_t);
    const uint32_t arrived = shared_address(&arrived_[turn]);
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :
                   : "r"(arrived), "r"(blocks * static_cast<int>(sizeof(T)))
                   : "memory");
    }
    if (static_cast<int>(threadIdx.x) < blocks) {
      uint32_t bits[kWords];
      memcpy(bits, &value, sizeof(value));
      const uint32_t target = dsmem_address(shared_address(&received_[turn][rank]), threadIdx.x);
      const uint32_t signal = dsmem_address(arrived, threadIdx.x);
      DIGLOT_UNROLL
      for (int i = 0; i < kWords; ++i) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                     :
                     : "r"(target + 4 * i), "r"(bits[i]), "r"(signal)
                     : "memory");
      }
    }
    uint32_t has_arrived = 0;
    while (has_arrived == 0) {
      asm volatile(
          "{\n"
          ".reg .pred here;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 here, [%1], %2;\n"
          "selp.u32 %0, 1, 0, here;\n"
          "}\n"
          : "=r"(has_arrived)
          : "r"(arrived), "r"(number / 2 % 2)
          : "memory");
    }
#else
    if (threadIdx.x == 0) received_[turn][rank] = value;
    cluster_sync();
    const int other = static_cast<int>(threadIdx.x);
    if (other < blocks && other != rank) {
      received_[turn][other] = *dsmem(&received_[turn][other], other);
    }
    cluster_sync();
#endif
  }

  // The value from the block of this rank.
  DIGLOT_DEVICE const T& received(int rank, unsigned number) const {
    return received_[number % 2][rank];
  }

 private:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  DIGLOT_DEVICE static uint32_t shared_address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  DIGLOT_DEVICE static uint32_t dsmem_address(uint32_t address, uint32_t rank) {
    uint32_t result;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
    return result;
  }
#endif

  T received_[2][kMostBlocks];
  uint64_t arrived_[2];
};

}  // namespace diglot
