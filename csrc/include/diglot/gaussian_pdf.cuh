// The mean of a normal density at points around x, and its derivative, one element at a time:
//
//   p(x) = 1/terms sum over i < terms of phi(x + (i - terms / 2) / 100)
//   phi(y) = exp(-((y - mean) / std)^2 / 2) / (std sqrt(2 pi))
//
// In the far tail the textbook formula multiplies the rounding error of y - mean by the square of
// its distance in standard deviations. At 13 of them fp32 loses six bits. Here one term, the
// greatest, is computed from an argument of two floats, and the others by their ratio to it:
//
//   u = 100 (x - mean) + k, for the k that makes it least: the greatest term's argument
//   phi(..) = peak B^(-(step (u + j))^2) = peak B^(-(step u)^2) B^(-step^2 j (2 u + j))
//
// with B = 2 in fp32, B = e in fp64. The last exponent is never positive. So its relative error
// costs half an ulp at most: ratios need no compensation, and overflow for no number of terms and
// no std. The ratios of two neighbours are added up plainly, their sums with compensation. An SM
// does eight operations in the time of an exponential, and a term should take no more.
//
// Greatest errors found on an H200, for normal results of 1 to 1000 terms: 4.3 ulp in fp32. In p',
// where terms on both sides of the mean cancel, 3.5 epsilon of the sum of their magnitudes. Where
// p' is zero, at the middle of a lone term, the rounding of the mean remains. In fp64 the tests
// find less than 4 epsilon.
//
// Infinite x are far out: p = p' = 0. NaN gives NaN. The twin of this file is
// triton_ops/lib/gaussian_pdf.py, operation for operation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "diglot/math.cuh"

namespace diglot {

// Terms are numbered by floats, so k must be exact in one.
constexpr int kMostGaussianTerms = 1 << 22;

// Numbers that follow from mean, std and terms, computed once for all elements.
template <typename T>
struct GaussianPdf {
  T mean, mean_tail;
  T step, step_tail;  // from one term to the next, in the unit in which B^(-v^2) is the density
  T curvature;        // -step^2
  T bound;            // of |u|, beyond which p and p' are zero, also times the greatest gradient
  T factor;           // of the sum of the ratios; in fp32 its logarithm to base 2,
  T factor_tail;      // and its rounding error
  T first;            // least k, or minus the number of terms before the middle one
  int32_t terms;
};

namespace gaussian_pdf_detail {

constexpr double kPeak = 0.3989422804014327;  // 1 / sqrt(2 pi)

// The parameters of p, or of p'.
inline GaussianPdf<float> parameters(float, double mean, double std, int terms, bool is_slope) {
  constexpr double kRoot = 0.008493218002880191;  // sqrt(log2(e) / 2) / 100
  constexpr double kSlope = 69.31471805599453;    // 100 log(2)
  const double step = kRoot / std;
  const double factor = kPeak / std / terms;
  const double exponent = std::log2(is_slope ? factor * (kSlope * step) : factor);
  GaussianPdf<float> result;
  result.mean = static_cast<float>(mean);
  result.mean_tail = std::isfinite(mean) ? static_cast<float>(mean - result.mean) : 0.0f;
  result.step = static_cast<float>(step);
  result.step_tail = static_cast<float>(step - result.step);
  result.curvature = static_cast<float>(-std::min(step * step, 1e30));
  result.bound = static_cast<float>(20.0 / step);
  result.factor = static_cast<float>(exponent);
  result.factor_tail = static_cast<float>(exponent - result.factor);
  result.first = static_cast<float>(-(terms / 2));
  result.terms = terms;
  return result;
}

inline GaussianPdf<double> parameters(double, double mean, double std, int terms, bool is_slope) {
  constexpr double kRoot = 0.007071067811865475;  // sqrt(1/2) / 100
  constexpr double kRootTail = -1.0172550095774809e-19;
  constexpr double kSlope = 100.0;
  GaussianPdf<double> result;
  result.mean = mean;
  result.mean_tail = 0.0;
  result.step = kRoot / std;
  result.step_tail = (std::fma(-result.step, std, kRoot) + kRootTail) / std;
  result.curvature = -(result.step * result.step);
  result.bound = 40.0 / result.step;
  result.factor = kPeak / std / terms;
  if (is_slope) result.factor = result.factor * (kSlope * result.step);
  result.factor_tail = 0.0;
  result.first = static_cast<double>(-(terms / 2));
  result.terms = terms;
  return result;
}

DIGLOT_DEVICE float power(float x) { return exp2_approximate(x); }
DIGLOT_DEVICE double power(double x) { return exponential(x); }

// value 2^(factor - (head + tail)^2); 0 from 2^-227 on. No intermediate result overflows, or
// underflows too early.
DIGLOT_DEVICE float scale(float value, float head, float tail, const GaussianPdf<float>& p) {
  const float square = head * head;
  const float square_tail = fma(head + head, tail, fma(head, head, -square));
  const TwoPart<float> exponent = two_sum(p.factor, -square);
  const float bounded = maximum(exponent.head, -227.0f);
  const float whole = round_down(bounded + 0.5f);
  const float fraction = (bounded - whole) + (exponent.tail + (p.factor_tail - square_tail));
  const float first = maximum(minimum(whole, 100.0f), -100.0f);
  const float second = whole - first;
  constexpr float kBias = kRoundingShift + 127.0f;
  const float scaled = (value * exp2_approximate(fraction)) * power_of_two(first + kBias);
  return scaled * power_of_two(second + kBias);
}

// value factor exp(-(head + tail)^2), with the exponential as the square of a root that does not
// underflow too early.
DIGLOT_DEVICE double scale(double value, double head, double tail, const GaussianPdf<double>& p) {
  const double square = head * head;
  const double square_tail = fma(head + head, tail, fma(head, head, -square));
  const double root = exponential(square * -0.5);
  return (((value * p.factor) * (1.0 - square_tail)) * root) * root;
}

// The argument u of an element's greatest term, and its k: all terms of the element share them.
template <typename T>
struct Nearest {
  T head;
  T tail;
  T k;
};

template <typename T>
DIGLOT_DEVICE Nearest<T> nearest_term(T x, const GaussianPdf<T>& p) {
  const T hundred = 100;
  const T zero = 0;
  const TwoPart<T> difference = two_sum(x, -p.mean);
  // Where x or the mean is infinite, the tail is NaN. A mean's tail is no greater than a head that
  // is not zero, but may be worth many terms.
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const T less = absolute(difference.head) < kInfinity ? difference.tail - p.mean_tail : zero;
  const TwoPart<T> distance = ordered_two_sum(difference.head, less);
  const T position = distance.head * hundred;
  const T position_tail = fma(distance.tail, hundred, fma(distance.head, hundred, -position));
  const T last = p.first + static_cast<T>(p.terms - 1);
  const T k = minimum(maximum(round_down(static_cast<T>(0.5) - position), p.first), last);
  // Either k is not greater than the position, or it is so near that the rounding error does not
  // matter.
  const TwoPart<T> coarse = ordered_two_sum(position, k);
  const T head = maximum(minimum(coarse.head, p.bound), -p.bound);
  // Where the position is infinite, its tail is NaN. A head that is not zero is greater than its
  // tail.
  const T rest = absolute(head) < p.bound ? coarse.tail + position_tail : zero;
  const TwoPart<T> u = ordered_two_sum(head, rest);
  return {u.head, u.tail, k};
}

// value factor B^(-(step u)^2).
template <typename T>
DIGLOT_DEVICE T scale(T value, const Nearest<T>& u, const GaussianPdf<T>& p) {
  const T head = u.head * p.step;
  const T tail = fma(u.head, p.step_tail, fma(u.tail, p.step, fma(u.head, p.step, -head)));
  return scale(value, head, tail, p);
}

// The ratio of the term j to the greatest one, which is 0.
template <typename T>
struct Ratio {
  T twice;  // 2 u
  T tail;   // twice the tail of u, times the curvature
  T curvature;

  DIGLOT_DEVICE Ratio(const Nearest<T>& u, const GaussianPdf<T>& p)
      : twice(u.head + u.head), tail((u.tail + u.tail) * p.curvature), curvature(p.curvature) {}
  DIGLOT_DEVICE T operator()(T j) const { return power(fma(twice + j, curvature, tail) * j); }
  // Twice u + j.
  DIGLOT_DEVICE T slope(T j) const { return (twice + j) + j; }
};

constexpr int kGroup = 2;

// Calls take(group) for each group of terms from j on. first(j) begins a group; add_term(j, group)
// adds a term to it. The terms that fill no group come first, one by one.
template <typename T, typename First, typename AddTerm, typename Take>
DIGLOT_DEVICE void for_each_group(T j, int32_t terms, First first, AddTerm add_term, Take take) {
  DIGLOT_NO_UNROLL
  for (int32_t i = terms % kGroup; i > 0; --i) {
    take(first(j));
    j = j + T(1);
  }
#if defined(__CUDA_ARCH__)
#pragma unroll 2  // not more: all of the loop must fit in the instruction cache
#endif
  for (int32_t i = terms / kGroup; i > 0; --i) {
    T group = first(j);
    DIGLOT_UNROLL
    for (int k = 1; k < kGroup; ++k) group = add_term(j + T(k), group);
    take(group);
    j = j + T(kGroup);
  }
}

}  // namespace gaussian_pdf_detail

// The parameters of a density, for gaussian_pdf, computed on the host. 1 <= terms <=
// kMostGaussianTerms, and std from 1e-30 to 1e30, in fp64 from 1e-150 to 1e150.
template <typename T>
GaussianPdf<T> gaussian_pdf_parameters(double mean, double std, int terms) {
  return gaussian_pdf_detail::parameters(T(), mean, std, terms, false);
}

// The parameters of its derivative, for gaussian_pdf_gradient.
template <typename T>
GaussianPdf<T> gaussian_pdf_slope_parameters(double mean, double std, int terms) {
  return gaussian_pdf_detail::parameters(T(), mean, std, terms, true);
}

// p(x).
template <typename T>
DIGLOT_DEVICE T gaussian_pdf(T x, const GaussianPdf<T>& p) {
  using namespace gaussian_pdf_detail;
  const Nearest<T> u = nearest_term(x, p);
  const Ratio<T> ratio(u, p);
  // The sum starts at two, which no group exceeds, so two operations find its rounding error.
  const T start = kGroup;
  T sum = start, rest = 0;
  for_each_group(
      p.first - u.k, p.terms, [&](T j) { return ratio(j); },
      [&](T j, T group) { return group + ratio(j); },
      [&](T group) {
        const TwoPart<T> next = ordered_two_sum(sum, group);
        sum = next.head, rest = rest + next.tail;
      });
  return scale((sum - start) + rest, u, p);
}

// grad p'(x). The gradient is multiplied in before anything could underflow.
template <typename T>
DIGLOT_DEVICE T gaussian_pdf_gradient(T grad, T x, const GaussianPdf<T>& p) {
  using namespace gaussian_pdf_detail;
  const Nearest<T> u = nearest_term(x, p);
  const Ratio<T> ratio(u, p);
  // Kahan's summation: a sum's excess is subtracted from the next addend.
  T sum = 0, excess = 0;
  for_each_group(
      p.first - u.k, p.terms, [&](T j) { return ratio(j) * ratio.slope(j); },
      [&](T j, T group) { return fma(ratio(j), ratio.slope(j), group); },
      [&](T group) {
        const T added = group - excess;
        const T next = sum + added;
        excess = (next - sum) - added;
        sum = next;
      });
  return scale(-grad * ((sum - excess) * p.step), u, p);
}

}  // namespace diglot
