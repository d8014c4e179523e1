// Operations on a 32-bit word that several blocks share, with the order that they give to other
// memory. A release publishes all that its thread has seen or written before. An acquire that reads
// the released value then sees it. PTX ISA, "Memory Consistency Model"; the scope is the GPU.
#pragma once

#include "diglot/platform.cuh"

namespace diglot {

// Adds, as a release and an acquire. Returns the value before the addition.
DIGLOT_DEVICE uint32_t atomic_add_acquire_release(uint32_t* word, uint32_t value,
                                                  [[maybe_unused]] Place place = Place::here()) {
#if defined(__CUDA_ARCH__)
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(word)), "r"(value)
               : "memory");
  return before;
#elif defined(DIGLOT_INTERPRETER)
  return interpreter::atomic_update(
      word, place, {interpreter::Ordering::kAcquireRelease, interpreter::Scope::kDevice},
      [=](uint32_t old) { return old + value; });
#else
  return atomicAdd(word, value);
#endif
}

DIGLOT_DEVICE uint32_t load_acquire(const uint32_t* word,
                                    [[maybe_unused]] Place place = Place::here()) {
#if defined(__CUDA_ARCH__)
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(word))
               : "memory");
  return value;
#elif defined(DIGLOT_INTERPRETER)
  return interpreter::atomic_load(
      word, {interpreter::Ordering::kAcquire, interpreter::Scope::kDevice}, place);
#else
  return atomicAdd(const_cast<uint32_t*>(word), 0u);
#endif
}

// Nanoseconds of a clock that all multiprocessors share. It ticks about once in a microsecond.
DIGLOT_DEVICE uint64_t global_nanoseconds() {
#if defined(__CUDA_ARCH__)
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  return 0;  // the interpreter finds endless waits by itself
#endif
}

}  // namespace diglot
