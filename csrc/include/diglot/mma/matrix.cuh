// ldmatrix and stmatrix: a warp loads or stores one, two or four matrices of 8 x 8 16-bit elements,
// whose rows of 16 bytes may lie anywhere in shared memory. A row begins at a multiple of 16 bytes.
// The argument `row` of lane i says where row i % 8 of matrix i / 8 begins; those of further lanes
// are ignored. All 32 lanes call the functions.
//
// Each lane has a register of two elements for each matrix. In lane i these are elements
// 2 * (i % 4) and the next one of row i / 4, or of column i / 4 if the matrix is transposed. wgmma
// places 16-bit operands and sums in the same way. stmatrix needs sm_90. PTX ISA, "ldmatrix",
// "stmatrix".
#pragma once

#include "diglot/platform.cuh"

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/matrices.h"
#endif

namespace diglot {

template <bool kIsTransposed>
struct MatrixForm {
  static constexpr char kText[] = "";
};
template <>
struct MatrixForm<true> {
  static constexpr char kText[] = ".trans";
};

template <bool kIsTransposed = false, int kMatrices>
DIGLOT_DEVICE void load_matrices(uint32_t (&d)[kMatrices], const void* row,
                                 [[maybe_unused]] Place place = Place::here()) {
  static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4, "one, two or four matrices");
#if defined(DIGLOT_INTERPRETER)
  interpreter::load_matrices(d, kMatrices, kIsTransposed, row, place);
#elif defined(__CUDA_ARCH__)
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kMatrices == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1%2.shared.b16 {%0}, [%1];"
                 : "=r"(d[0])
                 : "r"(from), "C"(MatrixForm<kIsTransposed>::kText)
                 : "memory");
  } else if constexpr (kMatrices == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2%3.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(from), "C"(MatrixForm<kIsTransposed>::kText)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4%5.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(from), "C"(MatrixForm<kIsTransposed>::kText)
                 : "memory");
  }
#endif
}

template <bool kIsTransposed = false, int kMatrices>
DIGLOT_DEVICE void store_matrices(const uint32_t (&d)[kMatrices], void* row,
                                  [[maybe_unused]] Place place = Place::here()) {
  static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4, "one, two or four matrices");
#if defined(DIGLOT_INTERPRETER)
  interpreter::store_matrices(d, kMatrices, kIsTransposed, row, place);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kMatrices == 1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1%2.shared.b16 [%0], {%1};"
                 :
                 : "r"(to), "r"(d[0]), "C"(MatrixForm<kIsTransposed>::kText)
                 : "memory");
  } else if constexpr (kMatrices == 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2%3.shared.b16 [%0], {%1, %2};"
                 :
                 : "r"(to), "r"(d[0]), "r"(d[1]), "C"(MatrixForm<kIsTransposed>::kText)
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4%5.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]),
                   "C"(MatrixForm<kIsTransposed>::kText)
                 : "memory");
  }
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}

}  // namespace diglot
