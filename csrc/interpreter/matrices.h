// ldmatrix and stmatrix, as kernels call them: a warp moves 8 x 8 matrices of 16-bit elements
// between shared memory and registers. PTX ISA, "ldmatrix", "stmatrix".
#pragma once

#include <cstdint>

#include "interpreter/interpreter.h"

namespace diglot::interpreter {

// A register of each of `count` matrices; `row` is where a row of a matrix begins, by lane.
void load_matrices(std::uint32_t* registers, int count, bool is_transposed, const void* row,
                   Place place);
void store_matrices(const std::uint32_t* registers, int count, bool is_transposed, void* row,
                    Place place);

}  // namespace diglot::interpreter
