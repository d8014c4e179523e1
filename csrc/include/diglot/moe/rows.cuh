// Rows on their way between tokens, and tokens sorted by experts. Twin of
// triton_ops/lib/moe/rows.py.
#pragma once

#include "diglot/math.cuh"
#include "diglot/types.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// A row of the result is a weighted sum of `terms` rows of the input. Its places name them.
struct MoeRows {
  int64_t sources;   // rows of the input
  int64_t accesses;  // of a row
  int terms;
  int spread;  // places that share a row of the input, and have weights each; 0: the terms have
               // them
  int64_t row_stride, column_stride;  // of the input
};

template <typename T, int kElements>
DIGLOT_DEVICE void sum_rows(const T* input, const int64_t* places, const compute_t<T>* weights,
                            T* out, const MoeRows& how) {
  using Compute = compute_t<T>;
  const int64_t row = blockIdx.x, access = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (access >= how.accesses) return;
  Compute sums[kElements] = {};
  for (int64_t term = row * how.terms; term < (row + 1) * how.terms; ++term) {
    const int64_t place = places[term], source = how.spread > 0 ? place / how.spread : place;
    if (place < 0 || source >= how.sources) continue;
    const Compute weight = weights == nullptr ? Compute{1} : weights[how.spread > 0 ? place : term];
    const auto values = load_vector<T, kElements>(input + source * how.row_stride +
                                                  access * kElements * how.column_stride);
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      sums[i] = fma(weight, convert<Compute>(values[i]), sums[i]);
    }
  }
  Vector<T, kElements> result;
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) result[i] = convert<T>(sums[i]);
  store_vector(out + (row * how.accesses + access) * kElements, result);
}

}  // namespace diglot
