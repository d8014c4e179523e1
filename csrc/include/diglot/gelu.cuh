// GELU and its derivative, one element at a time, in both forms of torch.nn.functional.gelu:
//
//   erf form  (Approximate::kNone)  x Phi(x)          Phi the normal distribution function
//   tanh form (Approximate::kTanh)  x / (1 + exp(-z))  z = 2 sqrt(2/pi) (x + 0.044715 x^3)
//
// The textbook 0.5 x (1 + erf(..)) or (1 + tanh(..)) cancels for x < 0: it has no correct digit
// left at x = -5.5 in fp32, where gelu is -1e-7. These functions compute the lower tail itself,
// with t = |x|, and take the other side as its complement. So they keep their relative accuracy for
// every x whose result is a normal number, even near the root of the derivative. There are no
// branches, only selections.
//
// Special values, as in the CUDA kernels of PyTorch: gelu(NaN) = NaN, gelu(+inf) = +inf and
// gelu(-inf) = NaN; the derivative at +-inf is NaN. Every finite x has a finite result. Results
// below the least normal number may be flushed to zero, and a zero may lose its sign.
//
// Precision names what the result is rounded to, which sets the length of the polynomials:
//   kHalf    x was fp16 or bf16, the fp32 result is rounded to it later
//   kFloat   fp32
//   kDouble  fp64
//
// Each precision has a file of its own: gelu_half.cuh, gelu_float.cuh, gelu_double.cuh. Their
// polynomials are minimax fits of tools/fit_gelu.py, which defines H, G, Q, C and W. Twin of
// triton_ops/lib/gelu.py.
#pragma once

#include "diglot/gelu_double.cuh"
#include "diglot/gelu_float.cuh"
#include "diglot/gelu_half.cuh"

namespace diglot {

enum class Approximate { kNone, kTanh };
enum class Precision { kHalf, kFloat, kDouble };

// The precision that a result of type T needs.
template <typename T>
constexpr Precision kPrecision = sizeof(T) == 2   ? Precision::kHalf
                                 : sizeof(T) == 4 ? Precision::kFloat
                                                  : Precision::kDouble;

// The type that a precision computes in.
template <Precision precision>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<Precision::kDouble> {
  using type = double;
};

// gelu(x). The largest errors found among normal results:
//
//            erf form                            tanh form
//   kHalf    1 ulp at 90 fp16 and 1 bf16 inputs  1 ulp at 8 fp16 inputs
//   kFloat   1.93 ulp; 0.97 ulp for x > 0        1.82 ulp; 1.51 ulp for x > 0
//   kDouble  1.3e-15, relative                   7e-16, relative
//
// kHalf is measured after rounding to fp16 or bf16; fp16 has 63488 finite inputs. kFloat is
// measured at all floats from 2^-12 to 14, with the reciprocal rounded correctly, or 1 ulp off in
// either direction.
template <Approximate approximate, Precision precision>
DIGLOT_DEVICE typename ComputeType<precision>::type gelu(typename ComputeType<precision>::type x) {
  constexpr bool kErf = approximate == Approximate::kNone;
  if constexpr (precision == Precision::kHalf) {
    return kErf ? gelu_detail::erf_forward_half(x) : gelu_detail::tanh_forward_half(x);
  } else if constexpr (precision == Precision::kFloat) {
    return kErf ? gelu_detail::erf_forward_float(x) : gelu_detail::tanh_forward_float(x);
  } else {
    return kErf ? gelu_detail::erf_forward_double(x) : gelu_detail::tanh_forward_double(x);
  }
}

// The derivative of gelu at x. The largest errors found, measured as above:
//
//            erf form                            tanh form
//   kHalf    1 ulp at 121 fp16 inputs            1 ulp at 8 fp16 inputs
//   kFloat   1.88 ulp; 1.18 ulp for x > 0        1.87 ulp; 1.23 ulp for x > 0
//   kDouble  8e-16, relative                     1.0e-15, relative
template <Approximate approximate, Precision precision>
DIGLOT_DEVICE typename ComputeType<precision>::type gelu_derivative(
    typename ComputeType<precision>::type x) {
  constexpr bool kErf = approximate == Approximate::kNone;
  if constexpr (precision == Precision::kHalf) {
    return kErf ? gelu_detail::erf_derivative_half(x) : gelu_detail::tanh_derivative_half(x);
  } else if constexpr (precision == Precision::kFloat) {
    return gelu_detail::gradient(
        1.0f, x,
        kErf ? gelu_detail::erf_derivative_float(x) : gelu_detail::tanh_derivative_float(x));
  } else {
    return kErf ? gelu_detail::erf_derivative_double(x) : gelu_detail::tanh_derivative_double(x);
  }
}

// grad times the derivative of gelu at x, with the derivative's accuracy. In fp32 the product is
// not rounded on its own. It does not vanish where the derivative alone would.
template <Approximate approximate, Precision precision>
DIGLOT_DEVICE typename ComputeType<precision>::type gelu_gradient(
    typename ComputeType<precision>::type grad, typename ComputeType<precision>::type x) {
  if constexpr (precision == Precision::kFloat) {
    return gelu_detail::gradient(grad, x,
                                 approximate == Approximate::kNone
                                     ? gelu_detail::erf_derivative_float(x)
                                     : gelu_detail::tanh_derivative_float(x));
  } else {
    return grad * gelu_derivative<approximate, precision>(x);
  }
}

}  // namespace diglot
