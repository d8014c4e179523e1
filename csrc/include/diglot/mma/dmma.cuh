// mma of float64: a warp multiplies 16 x 16 elements of A by 16 x 8 of B, on tensor cores. Twin of
// tl.dot. All 32 lanes call the function. Needs sm_80; since sm_90 it is one instruction, before
// it is eight. PTX ISA, "mma.m16n8k16", ".f64".
#pragma once

#include "diglot/platform.cuh"

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/matrices.h"
#endif

namespace diglot {

// The elements that a lane holds. Of A, element i is at this row and depth.
DIGLOT_HOST_DEVICE constexpr int dmma_row_of_a(int lane, int i) { return lane / 4 + i % 2 * 8; }
DIGLOT_HOST_DEVICE constexpr int dmma_depth_of_a(int lane, int i) { return lane % 4 + i / 2 * 4; }
DIGLOT_HOST_DEVICE constexpr int dmma_depth_of_b(int lane, int i) { return lane % 4 + i * 4; }
DIGLOT_HOST_DEVICE constexpr int dmma_column_of_b(int lane) { return lane / 4; }
// Of the sums.
DIGLOT_HOST_DEVICE constexpr int dmma_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
DIGLOT_HOST_DEVICE constexpr int dmma_column(int lane, int i) { return lane % 4 * 2 + i % 2; }

// d += a * b.
DIGLOT_DEVICE void dmma(double (&d)[4], const double (&a)[8], const double (&b)[4],
                        [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::dmma(d, a, b, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
        "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#elif defined(__CUDA_ARCH__)
  // Lanes hold the same elements of its quarters and halves.
  DIGLOT_UNROLL
  for (int k = 0; k < 4; ++k) {
    DIGLOT_UNROLL
    for (int half = 0; half < 2; ++half) {
      asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+d"(d[2 * half]), "+d"(d[2 * half + 1])
                   : "d"(a[2 * k + half]), "d"(b[k]));
    }
  }
#endif
}

}  // namespace diglot
