// A ring of stages in shared memory, through which a producer hands tiles to consumers, and what
// blocks of a cluster hand to each other. Loops over stages name memory by addresses that they
// keep: to compute that of a variable in each step takes longer than a small tile's products. It
// needs compute capability 9.0. PTX ISA, "mbarrier", "st.async".
#pragma once

#include "diglot/sync/mbarrier.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// The stages of the ring in turn, and the parity of their current phase.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  DIGLOT_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  DIGLOT_DEVICE void advance(int count) {
    stage += count;
    const int rounds = stage / kStages;
    stage -= rounds * kStages;
    parity ^= static_cast<uint32_t>(rounds) & 1;
  }
};

// A number that all lanes of a warp have. With kKeeps the compiler keeps it, and knows that it is
// uniform. Otherwise it computes it in each step.
template <bool kKeeps>
DIGLOT_DEVICE uint32_t pinned_if(uint32_t number) {
  return kKeeps ? __shfl_sync(0xffffffffu, number, 0) : number;
}

// A consumer's barriers where parts of a tile meet in a cluster: its memory is free in all blocks,
// and the sums that it gets are there.
struct Meeting {
  Mbarrier is_free, are_there;

  DIGLOT_DEVICE void init(int blocks) {
    is_free.init(blocks);
    are_there.init(1);
  }
};

// The barriers of a ring: a stage is full, and empty.
template <int kStages, int kConsumers>
struct RingBarriers {
  Mbarrier full[kStages], empty[kStages];
  Meeting meetings[kConsumers];
};

// The addresses of the stages' tiles and barriers. Shape::Shared has a, b, c and barriers.
template <typename Shape>
struct RingPlaces {
  using Shared = typename Shape::Shared;

  uint32_t first;  // of Shared

  // Whole warps call it.
  DIGLOT_DEVICE static RingPlaces of(const Shared& shared) {
    return {pinned_if<Shape::kKeepsAddresses>(shared_address(&shared))};
  }
  DIGLOT_DEVICE uint32_t a() const { return first; }
  DIGLOT_DEVICE uint32_t b() const { return a() + sizeof(Shared::a); }
  DIGLOT_DEVICE uint32_t full(int stage) const {
    return b() + static_cast<uint32_t>(sizeof(Shared::b) + sizeof(Shared::c) +
                                       sizeof(Mbarrier) * static_cast<uint32_t>(stage));
  }
  DIGLOT_DEVICE uint32_t empty(int stage) const { return full(Shape::kStages + stage); }
};

#if !defined(DIGLOT_INTERPRETER)
// has_ended = whether the phase of the barrier at `address` has ended.
#define DIGLOT_TRY_WAIT(SEMANTICS)          \
  asm volatile(                             \
      "{\n"                                 \
      ".reg .pred ended;\n"                 \
      "mbarrier.try_wait.parity." SEMANTICS \
      ".shared::cta.b64 ended, [%1], %2;\n" \
      "selp.u32 %0, 1, 0, ended;\n"         \
      "}\n"                                 \
      : "=r"(has_ended)                     \
      : "r"(address), "r"(parity)           \
      : "memory")
#endif

#if defined(DIGLOT_CHECKED)
// Waits as Mbarrier::wait, which tells of a wait without end.
DIGLOT_DEVICE void wait_with_patience(uint32_t address, uint32_t parity) {
  static_cast<const Mbarrier*>(__cvta_shared_to_generic(address))->wait(parity);
}
#endif

// Mbarrier::wait.
DIGLOT_DEVICE void wait_at(uint32_t address, uint32_t parity,
                           [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::mbarrier_wait(interpreter::own_memory(address, place), parity != 0,
                             interpreter::Scope::kBlock, place);
#elif defined(DIGLOT_CHECKED)
  wait_with_patience(address, parity);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  for (uint32_t has_ended = 0; has_ended == 0;) DIGLOT_TRY_WAIT("acquire.cta");
#endif
}

// Waits for a phase in which threads of the cluster hand back what they have read, by release_at.
// This thread's asynchronous operations may then overwrite it. It acquires nothing:
// wait_for_cluster() would empty the L1 cache in each step.
DIGLOT_DEVICE void wait_for_readers(uint32_t address, uint32_t parity,
                                    [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::mbarrier_wait_for_readers(interpreter::own_memory(address, place), parity != 0,
                                         place);
#elif defined(DIGLOT_CHECKED)
  wait_with_patience(address, parity);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  for (uint32_t has_ended = 0; has_ended == 0;) DIGLOT_TRY_WAIT("relaxed.cluster");
#endif
}
DIGLOT_DEVICE void wait_for_readers(const Mbarrier& barrier, uint32_t parity,
                                    Place place = Place::here()) {
  wait_for_readers(shared_address(&barrier, place), parity, place);
}

#undef DIGLOT_TRY_WAIT

// Mbarrier::arrive_expect.
DIGLOT_DEVICE void arrive_expect_at(uint32_t address, uint32_t bytes,
                                    [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::mbarrier_arrive(address, 1, bytes, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(address), "r"(bytes)
               : "memory");
#endif
}

// Mbarrier::arrive, and Mbarrier::release_at for an address in the cluster.
DIGLOT_DEVICE void release_at(uint32_t address, bool is_own,
                              [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::mbarrier_arrive(address, 1, 0, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (is_own) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(address) : "memory");
  } else {
    asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];"
                 :
                 : "r"(address)
                 : "memory");
  }
#endif
}

// Stores four numbers at a cluster address, asynchronously, and then completes 16 bytes at an
// mbarrier of the same block.
DIGLOT_DEVICE void store_async(uint32_t to, const Vector<float, 4>& values, uint32_t barrier,
                               [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::store_async(to, &values, sizeof(values), barrier, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
      :
      : "r"(to), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(barrier)
      : "memory");
#endif
}

}  // namespace diglot
