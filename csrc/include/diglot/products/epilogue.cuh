// What follows the sums of a product, in every kernel: the bias, the rounding, the stores by
// threads. Twin of triton_ops/lib/products/epilogue.py.
//
// A kernel keeps its sums where its threads need them. It lends them by a function `for_each`:
// for_each(visit) calls visit(sum, row, column) for each of a thread's sums that lies in C.
#pragma once

#include "diglot/platform.cuh"
#include "diglot/types.cuh"

namespace diglot {

// A matrix: steps, in elements, from a row to the next and from a column to the next.
struct MatrixStrides {
  int64_t row, column;
};

// C = sums + bias.
template <typename T>
struct Epilogue {
  int64_t m, n;         // of C
  const T* bias;        // null if there is none
  int64_t bias_stride;  // from a column's bias to the next
  T* c;
  MatrixStrides strides;  // of C

  // The same for another matrix of a batch.
  DIGLOT_DEVICE Epilogue moved(int64_t of_c) const {
    Epilogue result = *this;
    result.c += of_c;
    return result;
  }

  // Makes the elements of C, before their rounding, of a thread's sums.
  template <typename ForEach>
  DIGLOT_DEVICE void finish(ForEach for_each) const {
    if (bias == nullptr) return;
    for_each([&](compute_t<T>& sum, int64_t, int64_t column) {
      sum += convert<compute_t<T>>(bias[column * bias_stride]);
    });
  }

  // Rounds and stores them.
  template <typename ForEach>
  DIGLOT_DEVICE void store(ForEach for_each) const {
    for_each([&](compute_t<T>& sum, int64_t row, int64_t column) {
      c[row * strides.row + column * strides.column] = convert<T>(sum);
    });
  }
};

}  // namespace diglot
