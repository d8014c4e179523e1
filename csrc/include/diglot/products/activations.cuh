// Activations that may follow a product, and their derivatives, one element at a time. Twin of
// triton_ops/lib/products/activations.py.
#pragma once

#include <type_traits>

#include "diglot/gelu.cuh"
#include "diglot/math.cuh"
#include "diglot/types.cuh"

namespace diglot {

enum class Activation { kNone, kRelu, kSilu, kGelu, kGeluTanh };

// 1 / (1 + e^-x). The exponential of -|x| cannot overflow.
template <typename Value>
DIGLOT_DEVICE Value sigmoid(Value x) {
  const Value power = exp_nonpositive(-absolute(x)), numerator = x < 0 ? power : Value{1};
  if constexpr (sizeof(Value) == 8) {
    return numerator / (1 + power);
  } else {
    return numerator * reciprocal_approximate(1 + power);
  }
}

// The activation of x. T is the type that the result is rounded to.
template <Activation kActivation, typename T>
DIGLOT_DEVICE compute_t<T> activate(compute_t<T> x) {
  if constexpr (kActivation == Activation::kRelu) {
    return maximum(x, compute_t<T>{0});
  } else if constexpr (kActivation == Activation::kSilu) {
    return x * sigmoid(x);
  } else if constexpr (kActivation == Activation::kGelu) {
    return gelu<Approximate::kNone, kPrecision<T>>(x);
  } else {
    return gelu<Approximate::kTanh, kPrecision<T>>(x);
  }
}

// grad times the activation's derivative at x.
template <Activation kActivation, typename T>
DIGLOT_DEVICE compute_t<T> activation_gradient(compute_t<T> grad, compute_t<T> x) {
  if constexpr (kActivation == Activation::kRelu) {
    return x <= 0 ? compute_t<T>{0} : grad;
  } else if constexpr (kActivation == Activation::kSilu) {
    return grad * (sigmoid(x) * fma(x, sigmoid(-x), compute_t<T>{1}));
  } else if constexpr (kActivation == Activation::kGelu) {
    return gelu_gradient<Approximate::kNone, kPrecision<T>>(grad, x);
  } else {
    return gelu_gradient<Approximate::kTanh, kPrecision<T>>(grad, x);
  }
}

// Calls function(constant) for an activation that is not kNone.
template <typename Function>
DIGLOT_DEVICE void with_activation(Activation activation, Function function) {
  using A = Activation;
  switch (activation) {
    case A::kNone: return;
    case A::kRelu: return function(std::integral_constant<A, A::kRelu>{});
    case A::kSilu: return function(std::integral_constant<A, A::kSilu>{});
    case A::kGelu: return function(std::integral_constant<A, A::kGelu>{});
    case A::kGeluTanh: return function(std::integral_constant<A, A::kGeluTanh>{});
  }
}

}  // namespace diglot
