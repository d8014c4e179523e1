// Designs of a grid barrier. GridBarrier is one. docs/barriers.md says why each was tried.
#pragma once

#include <cooperative_groups.h>

#include "diglot/sync/grid_barrier.cuh"

namespace diglot {

namespace cg = cooperative_groups;

// The designs. All take a grid and blocks of one dimension, and a word that is zero at first. Each
// does as GridBarrier does, except in its one difference.

constexpr uint32_t kFlip = 0x80000000u;
constexpr unsigned kPause = 20;         // nanoseconds
constexpr unsigned kWords = 2048;       // of memory that a design may use
constexpr unsigned kFlagOffset = 1024;  // words from the counter to a flag beside it

DIGLOT_DEVICE bool has_flipped(uint32_t before, uint32_t now) {
  return ((before ^ now) & kFlip) != 0;
}

// What a block adds to the word, of `blocks` that do.
DIGLOT_DEVICE uint32_t step_of(uint32_t blocks) {
  return blockIdx.x == 0 ? kFlip - (blocks - 1) : 1;
}

DIGLOT_DEVICE uint32_t atomic_add_release(uint32_t* word, uint32_t value) {
  uint32_t before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(word)), "r"(value)
               : "memory");
  return before;
}

DIGLOT_DEVICE void store_release(uint32_t* word, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(word)),
               "r"(value)
               : "memory");
}

// The addition releases and the poll acquires, which is order enough. But then nothing makes the
// first poll wait for the addition's answer, and it is sent along with it.
struct PrematurePoll {
  uint32_t* word;

  DIGLOT_DEVICE explicit PrematurePoll(uint32_t* words) : word(words) {}
  DIGLOT_DEVICE void sync() {
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t before = atomic_add_release(word, step_of(gridDim.x));
      while (!has_flipped(before, load_acquire(word))) __nanosleep(kPause);
    }
    __syncthreads();
  }
};

// Saves the second __syncthreads(), since each thread sees the flip by itself.
struct AllThreadsPoll {
  uint32_t* word;
  uint32_t before;

  DIGLOT_DEVICE explicit AllThreadsPoll(uint32_t* words)
      : word(words), before(load_acquire(words)) {}
  DIGLOT_DEVICE void sync() {
    __syncthreads();
    if (threadIdx.x == 0) atomic_add_release(word, step_of(gridDim.x));
    while (!has_flipped(before, load_acquire(word))) __nanosleep(kPause);
    before ^= kFlip;
  }
};

// The last to arrive sets a flag on another cache line, so that polls never hold up additions.
struct FlagApart {
  uint32_t* word;

  DIGLOT_DEVICE explicit FlagApart(uint32_t* words) : word(words) {}
  DIGLOT_DEVICE void sync() {
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t step = step_of(gridDim.x);
      const uint32_t before = atomic_add_acquire_release(word, step);
      if (has_flipped(before, before + step)) {
        store_release(word + kFlagOffset, before + step);
      } else {
        while (!has_flipped(before, load_acquire(word + kFlagOffset))) __nanosleep(kPause);
      }
    }
    __syncthreads();
  }
};

// The blocks of a cluster meet first, by the hardware's barrier; one of them goes on for all.
struct ClusterFirst {
  uint32_t* word;

  DIGLOT_DEVICE explicit ClusterFirst(uint32_t* words) : word(words) {}
  DIGLOT_DEVICE void sync() {
    const auto cluster = cg::this_cluster();
    cluster.sync();
    if (threadIdx.x == 0 && cluster.block_rank() == 0) {
      const uint32_t step = step_of(gridDim.x / cluster.num_blocks());
      const uint32_t before = atomic_add_acquire_release(word, step);
      uint32_t now = before + step;
      while (!has_flipped(before, now)) {
        now = load_acquire(word);
        if (has_flipped(before, now)) break;
        __nanosleep(kPause);
      }
    }
    cluster.sync();
  }
};

struct CooperativeGroups {
  DIGLOT_DEVICE explicit CooperativeGroups(uint32_t*) {}
  DIGLOT_DEVICE void sync() { cg::this_grid().sync(); }
};

// A counter that only grows, which the host must reset, fences, and a volatile poll.
struct TextBook {
  uint32_t* word;
  uint32_t goal = 0;

  DIGLOT_DEVICE explicit TextBook(uint32_t* words) : word(words) {}
  DIGLOT_DEVICE void sync() {
    __syncthreads();
    if (threadIdx.x == 0) {
      goal += gridDim.x;
      __threadfence();
      atomicAdd(word, 1);
      while (*static_cast<volatile uint32_t*>(word) < goal) {
      }
      __threadfence();
    }
    __syncthreads();
  }
};
}  // namespace diglot
