// Thread block clusters: blocks that run at once on neighbouring SMs and reach each other's shared
// memory, which is then distributed shared memory (DSMEM). They need compute capability 9.0. A
// launch asks for them by Launch::cluster_blocks. PTX ISA, "barrier.cluster", "mapa".
#pragma once

#include <cstring>

#include "diglot/sync/mbarrier.cuh"

namespace diglot {

// The most blocks of a cluster. More than 8 are not portable: some devices have room for fewer.
constexpr int kMostClusterBlocks = 16;

// Arrives at the cluster's barrier without waiting, and releases the thread's writes to shared
// memory. All threads of all blocks of the cluster call it, and then cluster_wait.
DIGLOT_DEVICE void cluster_arrive([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::cluster_arrive(true, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
#endif
}

// The same, without a release: it waits for no memory access in flight.
DIGLOT_DEVICE void cluster_arrive_relaxed([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::cluster_arrive(false, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
#endif
}

// Waits until all have arrived.
DIGLOT_DEVICE void cluster_wait([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::cluster_wait(place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
#endif
}

DIGLOT_DEVICE void cluster_sync([[maybe_unused]] Place place = Place::here()) {
  cluster_arrive(place);
  cluster_wait(place);
}

// The address, in the shared memory of the block of this rank, that corresponds to an address in
// this block's shared memory. No block may end while others read there.
template <typename T>
DIGLOT_DEVICE const T* dsmem(const T* shared, [[maybe_unused]] int rank,
                             [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  return static_cast<const T*>(interpreter::shared_of_rank(shared, rank, place));
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

// A mailbox in shared memory, through which each block of a cluster repeatedly sends a value to all
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
  // The same without waiting: cluster_wait must follow. It releases only its own writes, so it
  // waits for no memory access in flight.
  DIGLOT_DEVICE void begin() {
    if (threadIdx.x == 0) {
      for (Mbarrier& arrived : arrived_) arrived.init(1);
      fence_mbarrier_init();
    }
    cluster_arrive_relaxed();
  }

  // Sends thread 0's value to all blocks of the cluster, and returns when the values of all have
  // arrived. All threads call it with the number of the exchange, from 0 on. Slots alternate. So
  // before the call all threads must have read the exchange before the last, and met at a barrier
  // since.
  DIGLOT_DEVICE void exchange(const T& value, int rank, int blocks, unsigned number) {
    constexpr int kWords = sizeof(T) / sizeof(uint32_t);
    const unsigned turn = number % 2;
    Mbarrier& arrived = arrived_[turn];
    if (threadIdx.x == 0) arrived.arrive_expect(blocks * static_cast<int>(sizeof(T)));
    if (static_cast<int>(threadIdx.x) < blocks) {
      uint32_t words[kWords];
      memcpy(words, &value, sizeof(value));
      const uint32_t target = cluster_address(shared_address(&received_[turn][rank]), threadIdx.x);
      const uint32_t signal = cluster_address(shared_address(&arrived), threadIdx.x);
      DIGLOT_UNROLL
      for (int i = 0; i < kWords; ++i) store_async(target + 4 * i, words[i], signal);
    }
    arrived.wait(number / 2 % 2);
  }

  // The value from the block of this rank.
  DIGLOT_DEVICE const T& received(int rank, unsigned number) const {
    return received_[number % 2][rank];
  }

 private:
  T received_[2][kMostBlocks];
  Mbarrier arrived_[2];
};

}  // namespace diglot
