// What a warp does with small matrices in registers, as kernels call it. ldmatrix and stmatrix move
// 8 x 8 matrices of 16-bit elements between shared memory and registers. dmma multiplies float64.
// PTX ISA, "ldmatrix", "stmatrix", "mma".
#pragma once

#include <cstdint>

#include "interpreter/interpreter.h"

namespace diglot::interpreter {

// A register of each of `count` matrices; `row` is where a row of a matrix begins, by lane.
void load_matrices(std::uint32_t* registers, int count, bool is_transposed, const void* row,
                   Place place);
void store_matrices(const std::uint32_t* registers, int count, bool is_transposed, void* row,
                    Place place);

// d += a * b: the elements of a lane are 4, 8 and 4.
void dmma(double* d, const double* a, const double* b, Place place);

}  // namespace diglot::interpreter
