// wgmma, as kernels call it. docs/interpreter.md says how it is modelled.
#pragma once

#include <cstdint>

#include "interpreter/interpreter.h"
#include "interpreter/products.h"

namespace diglot::interpreter {

// Issues a product of n columns; `d` are the calling thread's n / 2 accumulators.
void wgmma(const Product& product, int n, float* d, std::uint64_t a, std::uint64_t b,
           bool accumulate, Place place);
// The same with the thread's part of A in registers.
void wgmma(const Product& product, int n, float* d, const std::uint32_t (&a)[4], std::uint64_t b,
           bool accumulate, Place place);
void wgmma_fence(Place place);
void wgmma_commit(Place place);
// Returns when all groups but the latest `newer` are complete.
void wgmma_wait(int newer, Place place);

}  // namespace diglot::interpreter
