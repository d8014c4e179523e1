// Activations of experts, and their derivatives. Twin of triton_ops/lib/moe/activation.py.
#pragma once

#include "diglot/gelu.cuh"
#include "diglot/math.cuh"
#include "diglot/types.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

enum class MoeActivation { kSilu, kGelu };

// What a result of type T needs.
template <typename T>
constexpr Precision kMoePrecision = sizeof(T) == 2   ? Precision::kHalf
                                    : sizeof(T) == 4 ? Precision::kFloat
                                                     : Precision::kDouble;

// 1 / (1 + e^-x), for both signs of x without cancellation.
template <typename Compute>
DIGLOT_DEVICE Compute sigmoid(Compute x) {
  const Compute tail = exp_nonpositive(-absolute(x));
  return (x < 0 ? tail : Compute{1}) / (1 + tail);
}

template <typename T, MoeActivation kActivation>
DIGLOT_DEVICE compute_t<T> activate(compute_t<T> x) {
  if constexpr (kActivation == MoeActivation::kSilu) {
    return x * sigmoid(x);
  } else {
    return gelu<Approximate::kNone, kMoePrecision<T>>(x);
  }
}

// The gradient by x, from that of the activation. silu' = s (1 + x (1 - s)), where 1 - s = s(-x).
template <typename T, MoeActivation kActivation>
DIGLOT_DEVICE compute_t<T> activation_gradient(compute_t<T> grad, compute_t<T> x) {
  if constexpr (kActivation == MoeActivation::kSilu) {
    return grad * (sigmoid(x) * fma(x, sigmoid(-x), compute_t<T>{1}));
  } else {
    return gelu_gradient<Approximate::kNone, kMoePrecision<T>>(grad, x);
  }
}

// Rows of `columns` elements. Where they are gated, a row of the input has as many more behind
// them, which multiply the activations.
struct MoeRowShape {
  int64_t rows, columns;
  bool is_gated;
  DIGLOT_HOST_DEVICE int64_t pitch() const { return is_gated ? 2 * columns : columns; }
};

// The thread's access, of kElements elements; false past the end. `input` is its place in
// rows of the input, `out` in rows of `columns`.
template <int kElements>
DIGLOT_DEVICE bool find_access(const MoeRowShape& shape, int64_t& input, int64_t& out) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t width = shape.columns / kElements, row = index / width;
  if (row >= shape.rows) return false;
  const int64_t column = (index - row * width) * kElements;
  input = row * shape.pitch() + column, out = row * shape.columns + column;
  return true;
}

// out = activation(input), or activation(first half) * second half.
template <typename T, MoeActivation kActivation, int kElements>
DIGLOT_DEVICE void map_activation(const T* input, T* out, const MoeRowShape& shape) {
  using Compute = compute_t<T>;
  int64_t from, to;
  if (!find_access<kElements>(shape, from, to)) return;
  const auto x = load_vector<T, kElements>(input + from);
  Vector<T, kElements> result, up{};
  if (shape.is_gated) up = load_vector<T, kElements>(input + from + shape.columns);
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) {
    const Compute value = activate<T, kActivation>(convert<Compute>(x[i]));
    result[i] = convert<T>(shape.is_gated ? value * convert<Compute>(up[i]) : value);
  }
  store_vector(out + to, result);
}

// The gradients of both halves.
template <typename T, MoeActivation kActivation, int kElements>
DIGLOT_DEVICE void map_activation_gradient(const T* grad, const T* input, T* out,
                                           const MoeRowShape& shape) {
  using Compute = compute_t<T>;
  int64_t from, to;
  if (!find_access<kElements>(shape, from, to)) return;
  const auto dy = load_vector<T, kElements>(grad + to);
  const auto x = load_vector<T, kElements>(input + from);
  Vector<T, kElements> of_x, of_up, up{};
  if (shape.is_gated) up = load_vector<T, kElements>(input + from + shape.columns);
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) {
    const Compute wide = convert<Compute>(dy[i]), at = convert<Compute>(x[i]);
    const Compute scaled = shape.is_gated ? wide * convert<Compute>(up[i]) : wide;
    of_x[i] = convert<T>(activation_gradient<T, kActivation>(scaled, at));
    of_up[i] = convert<T>(wide * activate<T, kActivation>(at));
  }
  store_vector(out + from, of_x);
  if (shape.is_gated) store_vector(out + from + shape.columns, of_up);
}

}  // namespace diglot
