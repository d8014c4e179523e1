// Barriers in shared memory that count arrivals and the bytes of asynchronous copies. They need
// compute capability 9.0. PTX ISA, "mbarrier".
//
//   __shared__ Mbarrier full;
//   if (threadIdx.x == 0) {
//     full.init(1);             // one arrival a phase
//     fence_mbarrier_init();    // before a bulk copy, or another block, uses it
//   }
//   __syncthreads();
//   if (threadIdx.x == 0) {
//     full.arrive_expect(bytes);
//     tma_load(map, tile, full, {x, y});
//   }
//   full.wait(0);               // the phase of parity 0, the first; the next has parity 1
//
// A phase ends when all its arrivals have come, and all bytes that they expect. wait(parity)
// returns when the current phase has ended, if it has this parity. It returns at once if the phase
// before has this parity. So wait(1) on a new barrier returns at once. An arrival releases what its
// thread has written; a wait acquires it, wait_for_cluster() also where the thread is of another
// block. In Triton, the compiler makes and awaits the barriers of descriptors.
//
// Built with -DDIGLOT_CHECKED, a thread that has waited for two seconds prints where, and traps.
#pragma once

#include <type_traits>

#include "diglot/sync/shared_address.cuh"

#if defined(DIGLOT_CHECKED)
#include <cstdio>

#include "diglot/atomics.cuh"
#endif

namespace diglot {

// An instruction on the mbarrier `this`, with a number.
#define DIGLOT_MBARRIER(INSTRUCTION, NUMBER) \
  asm volatile(INSTRUCTION : : "r"(shared_address(this)), "r"(NUMBER) : "memory")

struct alignas(8) Mbarrier {
  uint64_t bits;  // opaque

  // One thread, once. The fence below makes it visible to bulk copies and other blocks.
  DIGLOT_DEVICE void init(uint32_t arrivals, [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
    interpreter::mbarrier_init(this, arrivals, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    DIGLOT_MBARRIER("mbarrier.init.shared::cta.b64 [%0], %1;", arrivals);
#endif
  }

  // Makes the memory usable for something else. No thread may wait, and no copy be under way.
  DIGLOT_DEVICE void invalidate([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
    interpreter::mbarrier_invalidate(this, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(shared_address(this)) : "memory");
#endif
  }

  DIGLOT_DEVICE void arrive([[maybe_unused]] uint32_t count = 1,
                            [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
    interpreter::mbarrier_arrive(shared_address(this, place), count, 0, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    DIGLOT_MBARRIER("mbarrier.arrive.shared::cta.b64 _, [%0], %1;", count);
#endif
  }

  // Expects more bytes in this phase, without an arrival.
  DIGLOT_DEVICE void expect([[maybe_unused]] uint32_t bytes,
                            [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
    interpreter::mbarrier_arrive(shared_address(this, place), 0, bytes, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    DIGLOT_MBARRIER("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;", bytes);
#endif
  }

  // Expects more bytes and arrives once, in one step.
  DIGLOT_DEVICE void arrive_expect([[maybe_unused]] uint32_t bytes,
                                   [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
    interpreter::mbarrier_arrive(shared_address(this, place), 1, bytes, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    DIGLOT_MBARRIER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", bytes);
#endif
  }

  // Arrives at the corresponding barrier of the block of this rank in the cluster, which must not
  // end before, and waits by wait_for_cluster().
  DIGLOT_DEVICE void arrive_at(uint32_t rank, [[maybe_unused]] uint32_t count = 1,
                               [[maybe_unused]] Place place = Place::here()) {
    [[maybe_unused]] const uint32_t address =
        cluster_address(shared_address(this, place), rank, place);
#if defined(DIGLOT_INTERPRETER)
    interpreter::mbarrier_arrive(address, count, 0, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], %1;"
                 :
                 : "r"(address), "r"(count)
                 : "memory");
#endif
  }

  // The same by a thread that has only read what it hands back: its writes are published to its own
  // block alone. To publish them to the cluster, arrive_at waits until all have reached L2, which
  // takes about a microsecond.
  DIGLOT_DEVICE void release_at(uint32_t rank, [[maybe_unused]] Place place = Place::here()) {
    [[maybe_unused]] const uint32_t address =
        cluster_address(shared_address(this, place), rank, place);
#if defined(DIGLOT_INTERPRETER)
    interpreter::mbarrier_arrive(address, 1, 0, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];"
                 :
                 : "r"(address)
                 : "memory");
#endif
  }

  // Whether the phase has ended. It may wait for a short time.
  DIGLOT_DEVICE bool try_wait(uint32_t parity, Place place = Place::here()) const {
    return try_wait_in<Scope::kBlock>(parity, place);
  }
  DIGLOT_DEVICE void wait(uint32_t parity, Place place = Place::here()) const {
    wait_in<Scope::kBlock>(parity, place);
  }

  // The same where other blocks' threads arrive: a wait of the block's scope acquires nothing of
  // them. It also empties the L1 cache.
  DIGLOT_DEVICE bool try_wait_for_cluster(uint32_t parity, Place place = Place::here()) const {
    return try_wait_in<Scope::kCluster>(parity, place);
  }
  DIGLOT_DEVICE void wait_for_cluster(uint32_t parity, Place place = Place::here()) const {
    wait_in<Scope::kCluster>(parity, place);
  }

 private:
#if defined(DIGLOT_INTERPRETER)
  using Scope = interpreter::Scope;
#else
  enum class Scope { kBlock, kCluster };
#endif

  template <Scope kScope>
  DIGLOT_DEVICE bool try_wait_in([[maybe_unused]] uint32_t parity,
                                 [[maybe_unused]] Place place) const {
#if defined(DIGLOT_INTERPRETER)
    return interpreter::mbarrier_try_wait(this, parity != 0, kScope, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t has_ended;
    if constexpr (kScope == Scope::kBlock) {
      asm volatile(
          "{\n"
          ".reg .pred ended;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
          "selp.u32 %0, 1, 0, ended;\n"
          "}\n"
          : "=r"(has_ended)
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
    } else {
      asm volatile(
          "{\n"
          ".reg .pred ended;\n"
          "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%1], %2;\n"
          "selp.u32 %0, 1, 0, ended;\n"
          "}\n"
          : "=r"(has_ended)
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
    }
    return has_ended != 0;
#else
    return true;
#endif
  }

  template <Scope kScope>
  DIGLOT_DEVICE void wait_in(uint32_t parity, [[maybe_unused]] Place place) const {
#if defined(DIGLOT_INTERPRETER)
    interpreter::mbarrier_wait(this, parity != 0, kScope, place);
#elif defined(DIGLOT_CHECKED)
    const uint64_t begin = global_nanoseconds();
    while (!try_wait_in<kScope>(parity, place)) {
      if (global_nanoseconds() - begin > kPatience) give_up(parity);
    }
#else
    while (!try_wait_in<kScope>(parity, place)) {
    }
#endif
  }

#if defined(DIGLOT_CHECKED)
  static constexpr uint64_t kPatience = 2'000'000'000;  // nanoseconds

  DIGLOT_DEVICE void give_up(uint32_t parity) const {
    printf(
        "mbarrier: thread (%u, %u, %u) of block (%u, %u, %u) has waited 2 s for the phase of "
        "parity %u of the barrier at shared address %u\n",
        threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z, parity,
        shared_address(this));
    __trap();
  }
#endif
};

#undef DIGLOT_MBARRIER

// Makes the initialisation of mbarriers visible to bulk copies and to other blocks of the cluster,
// once those have passed a barrier after it.
DIGLOT_DEVICE void fence_mbarrier_init([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::fence_mbarrier_init(place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
#endif
}

// Bulk copies and wgmma reach memory through another proxy than ordinary accesses. The fence orders
// ordinary accesses to shared memory before it, this thread's and those that it has synchronised
// with, before asynchronous ones after it. PTX ISA, "fence.proxy.async".
DIGLOT_DEVICE void fence_async_proxy([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::fence_async_proxy(place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}

// The same for global memory: where a kernel writes or reads it, and bulk copies then read or write
// the same bytes. Earlier launches' accesses need no fence.
DIGLOT_DEVICE void fence_async_proxy_global([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::fence_async_proxy_global(place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" : : : "memory");
#endif
}

// Stores 4 or 8 bytes asynchronously at a cluster address, and then completes as many bytes at an
// mbarrier of the same block. PTX ISA, "st.async".
template <typename T>
DIGLOT_DEVICE void store_async(uint32_t to, const T& value, uint32_t barrier,
                               [[maybe_unused]] Place place = Place::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> bits;
  memcpy(&bits, &value, sizeof(value));
#if defined(DIGLOT_INTERPRETER)
  interpreter::store_async(to, bits, sizeof(T), barrier, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :
                 : "r"(to), "r"(bits), "r"(barrier)
                 : "memory");
  } else {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
                 :
                 : "r"(to), "l"(bits), "r"(barrier)
                 : "memory");
  }
#endif
}

}  // namespace diglot
