// What follows the sums of a product, in every kernel: factors, the bias, a matrix beside the
// product, the activation, the rounding, the stores by threads. Twin of
// triton_ops/lib/products/epilogue.py.
//
// A kernel keeps its sums where its threads need them. It lends them by a function `for_each`:
// for_each(visit) calls visit(sum, row, column) for each of a thread's sums that lies in C.
#pragma once

#include "diglot/platform.cuh"
#include "diglot/products/activations.cuh"
#include "diglot/types.cuh"

namespace diglot {

// A matrix: steps, in elements, from a row to the next and from a column to the next.
struct MatrixStrides {
  int64_t row, column;
};

// C = activation(alpha sums + bias + beta input), rounded once.
//
// With `is_slope`, C = (alpha sums + bias) times the activation's derivative at `input`.
template <typename T>
struct Epilogue {
  using Value = compute_t<T>;

  int64_t m, n;  // of C
  Value alpha, beta;
  const T* bias;        // null if absent
  int64_t bias_stride;  // from a column's bias to the next
  const T* input;       // null if absent
  MatrixStrides of_input;
  Activation activation;
  bool is_slope;
  T* before;  // gets the elements before their activation, unless it is null
  T* c;
  MatrixStrides strides;  // of `c` and `before`

  // The same for another matrix of a batch.
  DIGLOT_DEVICE Epilogue moved(int64_t in_c, int64_t in_input) const {
    Epilogue result = *this;
    result.c += in_c;
    if (before != nullptr) result.before += in_c;
    if (input != nullptr) result.input += in_input;
    return result;
  }

  // Makes alpha sums + bias + beta input of a thread's sums.
  template <typename ForEach>
  DIGLOT_DEVICE void combine(ForEach for_each) const {
    if (alpha != 1) {
      for_each([&](Value& sum, auto, auto) { sum *= alpha; });
    }
    if (bias != nullptr) {
      for_each([&](Value& sum, auto, int64_t column) {
        sum += convert<Value>(bias[column * bias_stride]);
      });
    }
    if (input != nullptr && !is_slope) {
      for_each([&](Value& sum, int64_t row, int64_t column) {
        sum = fma(beta, input_at(row, column), sum);
      });
    }
  }

  // Applies the activation, or multiplies by its derivative.
  template <typename ForEach>
  DIGLOT_DEVICE void activate(ForEach for_each) const {
    with_activation(activation, [&](auto constant) {
      constexpr Activation kActivation = decltype(constant)::value;
      if (is_slope) {
        for_each([&](Value& sum, int64_t row, int64_t column) {
          sum = activation_gradient<kActivation, T>(sum, input_at(row, column));
        });
      } else {
        for_each([](Value& sum, auto, auto) { sum = diglot::activate<kActivation, T>(sum); });
      }
    });
  }

  // Rounds and stores the elements, to `before` or to C.
  template <typename ForEach>
  DIGLOT_DEVICE void store(bool is_before, ForEach for_each) const {
    T* const to = is_before ? before : c;
    for_each([&](Value& sum, int64_t row, int64_t column) {
      to[row * strides.row + column * strides.column] = convert<T>(sum);
    });
  }

 private:
  DIGLOT_DEVICE Value input_at(int64_t row, int64_t column) const {
    return convert<Value>(input[row * of_input.row + column * of_input.column]);
  }
};

// The steps of a tile after its sums. store(is_before) rounds and stores the elements, to
// `before` or to C. accumulators.cuh has the same steps for tensor cores of 16-bit types.
template <typename T, typename ForEach, typename Store>
DIGLOT_DEVICE void finish(const Epilogue<T>& epilogue, ForEach for_each, Store store) {
  epilogue.combine(for_each);
  if (epilogue.before != nullptr) store(true);
  epilogue.activate(for_each);
  store(false);
}

}  // namespace diglot
