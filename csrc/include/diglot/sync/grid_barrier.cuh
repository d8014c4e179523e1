// A barrier across the blocks of a grid. Twin of triton_ops/lib/sync/grid_barrier.py.
//
//   __global__ void kernel(uint32_t* barrier_state, ...) {
//     GridBarrier barrier(barrier_state);
//     partial[blockIdx.x] = ...;
//     barrier.sync();
//     total = partial[0] + partial[1] + ...;
//
// All blocks of the grid must run at once, or the barrier never ends: launch cooperatively, with at
// most resident_blocks<kernel>() blocks (launch.cuh).
//
// The state is one word. Every block adds 1 to it; the first block adds the rest to 2^31. So the
// top bit flips when the last block has arrived, and the other bits are as before. Nobody resets
// the state, neither between barriers nor between launches of any grids. When a kernel starts it
// must be zero, or the state that such barriers left. Kernels that may run at the same time must
// not share it. (Cooperative groups' grid.sync() uses the same scheme.)
//
// Visibility. After the barrier every thread of every block sees all that any thread of any block
// wrote before it. A block's writes happen before its __syncthreads(), and that happens before the
// release by its first thread. The release is cumulative: it covers all that its thread has
// observed. The additions of all blocks to one word form a release sequence. The thread that reads
// the flipped bit with an acquire therefore synchronizes with all of them. Its block's second
// __syncthreads() passes that on.
//
// Some loads are outside this order. They must not read, after the barrier, memory that the same
// kernel wrote before it. They are __ldg(), textures and surfaces, asynchronous copies begun before
// the barrier, and loads that the compiler turns into ld.global.nc because the pointer is `const
// __restrict__`. Such loads read caches that are not coherent within a kernel.
//
// Why it is fast. A block polls only after its addition has returned. Polls and additions of one
// word are served one after the other. Polls that are sent along with the addition, as a compiler
// would do it, delay the additions of blocks that have yet to arrive. docs/barriers.md has the
// measurements.
//
// Built with -DDIGLOT_CHECKED, a block that has waited for ten seconds prints its place, and traps.
#pragma once

#include "diglot/atomics.cuh"

#if defined(DIGLOT_CHECKED)
#include <cstdio>
#endif

namespace diglot {

class GridBarrier {
 public:
  DIGLOT_DEVICE explicit GridBarrier(uint32_t* state) : state_(state) {}

  // Every thread of every block calls these, in the same order. Between arrive() and wait() a block
  // may do work that does not depend on other blocks, nor they on it.
  DIGLOT_DEVICE void sync() {
    arrive();
    wait();
  }

  DIGLOT_DEVICE void arrive() {
    __syncthreads();
    if (!is_first_thread()) return;
    const uint32_t step = is_first_block() ? kFlip - (blocks() - 1) : 1;
    before_ = atomic_add_acquire_release(state_, step);
    now_ = before_ + step;
  }

  DIGLOT_DEVICE void wait() {
    if (is_first_thread()) {
#if defined(DIGLOT_CHECKED)
      const uint64_t begin = global_nanoseconds();
#endif
      // The block that arrives last has flipped the bit itself.
      while (!has_flipped()) {
        now_ = load_acquire(state_);
        if (has_flipped()) break;
        __nanosleep(kPause);
#if defined(DIGLOT_CHECKED)
        if (global_nanoseconds() - begin > kPatience) give_up();
#endif
      }
    }
    __syncthreads();
#if defined(DIGLOT_CHECKED)
    ++phase_;
#endif
  }

 private:
  static constexpr uint32_t kFlip = 0x80000000u;
  static constexpr unsigned kPause = 20;  // nanoseconds

  DIGLOT_DEVICE static bool is_first_thread() {
    return threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
  }
  DIGLOT_DEVICE static bool is_first_block() {
    return blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
  }
  DIGLOT_DEVICE static uint32_t blocks() { return gridDim.x * gridDim.y * gridDim.z; }
  DIGLOT_DEVICE bool has_flipped() const { return ((before_ ^ now_) & kFlip) != 0; }

  uint32_t* state_;
  uint32_t before_ = 0;  // the state before the first thread's addition,
  uint32_t now_ = 0;     // and the last value that the thread saw

#if defined(DIGLOT_CHECKED)
  static constexpr uint64_t kPatience = 10'000'000'000;  // nanoseconds
  uint32_t phase_ = 0;

  DIGLOT_DEVICE void give_up() const {
    // Without the first block the low bits count the arrived blocks. The first adds 2^31 minus the
    // number of the others.
    const uint32_t low = now_ & ~kFlip;
    const bool is_first_there = low > kFlip / 2;
    const uint32_t arrived = is_first_there ? low + blocks() - kFlip : low;
    printf(
        "grid barrier: block (%u, %u, %u) has waited 10 s in phase %u; %u of %u blocks have "
        "arrived, the first of them %s\n",
        blockIdx.x, blockIdx.y, blockIdx.z, phase_, arrived, blocks(),
        is_first_there ? "too" : "not");
    __trap();
  }
#endif
};

}  // namespace diglot
