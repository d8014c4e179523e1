// wgmma: a warpgroup multiplies 64 rows of A by n columns of B while its threads go on. A warpgroup
// is four neighbouring warps; the number of the first is a multiple of 4. Twin of tl.dot. Needs
// sm_90a. PTX ISA, "wgmma.mma_async".
//
//   float d[64] = {};  // 64 x 128 sums: n / 2 for each thread
//   fence_accumulators(d);
//   wgmma_fence();
//   for (int k = 0; k < 64; k += 16) {
//     wgmma<MmaType::kBfloat16>(d, TileA::descriptor(a, 0, k), TileB::descriptor(b, 0, k), true);
//   }
//   wgmma_commit();
//   wgmma_wait<0>();
//   fence_accumulators(d);
//
// The products are made at some time between the call and the wait. Until the wait nobody may write
// to the tiles or touch `d`. Threads that wrote to the tiles before must call fence_async_proxy(),
// and a barrier must follow. The interpreter finds who breaks these rules; docs/wgmma.md has them.
#pragma once

#include "diglot/mma/operands.h"
#include "diglot/platform.cuh"

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/wgmma.h"
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "diglot/mma/wgmma_instructions.cuh"
#endif

namespace diglot {

// Orders a thread's accesses to accumulators before the products that follow. It is needed before
// the first product, and after each access. Products of one shape need none between them.
DIGLOT_DEVICE void wgmma_fence([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::wgmma_fence(place);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}

// Makes a group of the products that the thread has issued since its last group.
DIGLOT_DEVICE void wgmma_commit([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::wgmma_commit(place);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
#endif
}

// Returns when all groups but the latest kNewer are complete.
template <int kNewer>
DIGLOT_DEVICE void wgmma_wait([[maybe_unused]] Place place = Place::here()) {
  static_assert(kNewer >= 0, "a number of groups");
#if defined(DIGLOT_INTERPRETER)
  interpreter::wgmma_wait(kNewer, place);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kNewer) : "memory");
#endif
}

// Keeps the compiler from moving accesses to accumulators across this line. ptxas makes products
// wait for each other (its warnings C7510 to C7515) where accesses come between them.
template <int kRegisters>
DIGLOT_DEVICE void fence_accumulators(float (&d)[kRegisters]) {
#if defined(__CUDA_ARCH__)
  DIGLOT_UNROLL
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(d[i]) : : "memory");
#elif defined(DIGLOT_INTERPRETER)
  asm volatile("" : : "r"(&d) : "memory");
#endif
}

// An instruction's types and options: all but its n.
template <MmaType kTypeA, MmaType kTypeB, Major kMajorA, Major kMajorB, bool kNegatesA,
          bool kNegatesB, bool kHasRegistersA>
struct WgmmaForm {
  static constexpr bool kHasMajors = bytes_of(kTypeA) == 2;
  static_assert(bytes_of(kTypeA) == 1 ? bytes_of(kTypeB) == 1 : kTypeA == kTypeB,
                "A and B have one type, or both are FP8");
  static_assert(kHasMajors || (kMajorA == Major::kK && kMajorB == Major::kK),
                "only 16-bit operands may be MN-major");

#if defined(DIGLOT_INTERPRETER)
  static constexpr interpreter::Product kProduct{kTypeA,    kTypeB,    kMajorA,       kMajorB,
                                                 kNegatesA, kNegatesB, kHasRegistersA};
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using TextA = MmaTypeText<kTypeA>;
  using TextB = MmaTypeText<kTypeB>;
  // The text of its last operands: the signs of A and B. Then, for operands of 16 bits in shared
  // memory, which of them are MN-major.
  static constexpr bool kHasMajorA = kHasMajors && !kHasRegistersA;
  static constexpr char kOptions[] = {',',
                                      sign_text(kNegatesA),
                                      '1',
                                      ',',
                                      sign_text(kNegatesB),
                                      '1',
                                      kHasMajorA ? ',' : ' ',
                                      kHasMajorA ? major_text(kMajorA) : ' ',
                                      kHasMajors ? ',' : ' ',
                                      kHasMajors ? major_text(kMajorB) : ' ',
                                      '\0'};
#endif
};

// The body of both functions below: A is a descriptor or four registers.
template <typename Form, typename A, int kRegisters>
DIGLOT_DEVICE void issue_wgmma(float (&d)[kRegisters], const A& a, uint64_t b, bool accumulate,
                               [[maybe_unused]] Place place) {
  static_assert(kRegisters % 4 == 0 && kRegisters <= 128, "n is a multiple of 8 up to 256");
#if defined(DIGLOT_INTERPRETER)
  interpreter::wgmma(Form::kProduct, 2 * kRegisters, d, a, b, accumulate, place);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WgmmaInstruction<2 * kRegisters>::template multiply<Form>(d, a, b, accumulate);
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}

// Issues d = a * b + d, or d = a * b if not `accumulate`. kNegatesA and kNegatesB change the signs
// of A and B. `d` has n / 2 elements, with n a multiple of 8 up to 256; accumulator_row and
// accumulator_column say which. `a` and `b` are descriptors of 64 rows and of n columns; both have
// depth_of(kTypeA) of K. All threads of the warpgroup give the same arguments.
template <MmaType kTypeA, MmaType kTypeB = kTypeA, Major kMajorA = Major::kK,
          Major kMajorB = Major::kK, bool kNegatesA = false, bool kNegatesB = false, int kRegisters>
DIGLOT_DEVICE void wgmma(float (&d)[kRegisters], uint64_t a, uint64_t b, bool accumulate,
                         Place place = Place::here()) {
  using Form = WgmmaForm<kTypeA, kTypeB, kMajorA, kMajorB, kNegatesA, kNegatesB, false>;
  issue_wgmma<Form>(d, a, b, accumulate, place);
}

// The same with A in registers, four for each thread; operand_row and operand_depth say which
// elements they hold. After a change of them, the thread must call wgmma_fence() first.
template <MmaType kTypeA, MmaType kTypeB = kTypeA, Major kMajorB = Major::kK,
          bool kNegatesA = false, bool kNegatesB = false, int kRegisters>
DIGLOT_DEVICE void wgmma(float (&d)[kRegisters], const uint32_t (&a)[4], uint64_t b,
                         bool accumulate, Place place = Place::here()) {
  using Form = WgmmaForm<kTypeA, kTypeB, Major::kK, kMajorB, kNegatesA, kNegatesB, true>;
  issue_wgmma<Form>(d, a, b, accumulate, place);
}

}  // namespace diglot
