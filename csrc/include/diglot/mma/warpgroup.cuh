// Warpgroups, four neighbouring warps: their registers, barriers of some of them, and a lane that
// speaks for its warp. They need compute capability 9.0; registers move on sm_90a only.
#pragma once

#include "diglot/sync/shared_address.cuh"

namespace diglot {

constexpr int kWarpgroupThreads = 128;

// Waits at barrier `number`, 1 to 15, until `threads` threads, whole warps, have arrived at it.
// __syncthreads() uses barrier 0. PTX ISA, "barrier".
DIGLOT_DEVICE void named_barrier_sync([[maybe_unused]] int number, [[maybe_unused]] int threads,
                                      [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::named_barrier(number, threads, true, place);
#elif defined(__CUDA_ARCH__)
  asm volatile("bar.sync %0, %1;" : : "r"(number), "r"(threads) : "memory");
#endif
}

// The same without waiting.
DIGLOT_DEVICE void named_barrier_arrive([[maybe_unused]] int number, [[maybe_unused]] int threads,
                                        [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::named_barrier(number, threads, false, place);
#elif defined(__CUDA_ARCH__)
  asm volatile("bar.arrive %0, %1;" : : "r"(number), "r"(threads) : "memory");
#endif
}

// True in one lane of the warp, always the same. All lanes call it. PTX ISA, "elect.sync".
DIGLOT_DEVICE bool elect_one([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  return interpreter::elect_one(0xffffffffu, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t is_elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(is_elected));
  return is_elected != 0;
#else
  return threadIdx.x % 32 == 0;
#endif
}

// Moves registers, so that each thread of the warpgroup has kCount. All threads of the warpgroup
// call it. Together, warpgroups must not have more than the launch gave them: for each thread 65536
// divided by the threads of a block, rounded down to a multiple of 8. The kernel needs
// __launch_bounds__(threads, 1), or ptxas ignores the instruction (C7508). PTX ISA, "setmaxnreg".
template <int kCount, bool kIsMore>
DIGLOT_DEVICE void set_registers([[maybe_unused]] Place place) {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
#if defined(DIGLOT_INTERPRETER)
  interpreter::set_registers(kCount, kIsMore, place);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (kIsMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kCount));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kCount));
  }
#endif
}

// Keeps kCount, and gives the others back.
template <int kCount>
DIGLOT_DEVICE void release_registers(Place place = Place::here()) {
  set_registers<kCount, false>(place);
}

// Takes as many more as it needs, once the block has them left.
template <int kCount>
DIGLOT_DEVICE void take_registers(Place place = Place::here()) {
  set_registers<kCount, true>(place);
}

}  // namespace diglot
