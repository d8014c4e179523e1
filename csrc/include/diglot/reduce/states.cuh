// States of reductions: sums, a maximum with a sum of exponentials, moments. A state has none(),
// the state of no elements, and combine(a, b). Twin of triton_ops/lib/reduce/states.py.
#pragma once

#include <limits>

#include "diglot/math.cuh"
#include "diglot/types.cuh"

namespace diglot {

// The arrays that one reduction reads.
template <typename T, int kInputs>
struct Inputs {
  const T* arrays[kInputs];
};

// kCount sums.
template <typename Compute, int kCount>
struct Sums {
  Compute values[kCount];

  DIGLOT_DEVICE static Sums none() { return {}; }
};

template <typename Compute, int kCount>
DIGLOT_DEVICE Sums<Compute, kCount> combine(Sums<Compute, kCount> a,
                                            const Sums<Compute, kCount>& b) {
  DIGLOT_UNROLL
  for (int i = 0; i < kCount; ++i) a.values[i] += b.values[i];
  return a;
}

// e^x for x <= 0, as exactly as type T can represent.
template <typename T>
DIGLOT_DEVICE compute_t<T> exp_nonpositive_for(compute_t<T> x) {
  if constexpr (sizeof(T) == 2) {
    return exp2_approximate(x * kLog2E);
  } else {
    return exp_nonpositive(x);
  }
}

// The maximum of elements of type T, and the sum of e^(x - max). combine() rescales both sums to
// the common maximum: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018,
// arXiv:1805.02867. While no element is greater than -inf, the sum is of e^x: 0, or NaN.
template <typename T>
struct MaxSum {
  compute_t<T> max;
  compute_t<T> sum;

  DIGLOT_DEVICE static MaxSum none() {
    return {-std::numeric_limits<compute_t<T>>::infinity(), compute_t<T>(0)};
  }
  // The state of the elements that visit(function) passes to function, in the same order each time.
  template <typename Visit>
  DIGLOT_DEVICE static MaxSum reduce(Visit visit) {
    MaxSum state = none();
    visit([&](compute_t<T> x) { state.max = maximum(state.max, x); });
    const compute_t<T> shift = state.shift();
    visit([&](compute_t<T> x) { state.sum += exp_nonpositive_for<T>(x - shift); });
    return state;
  }
  // The same, while the second visit replaces each element x by keep(x, e^(x - max)).
  template <typename Visit, typename Keep>
  DIGLOT_DEVICE static MaxSum reduce_replacing(Visit visit, Keep keep) {
    MaxSum state = none();
    visit([&](compute_t<T>& x) { state.max = maximum(state.max, x); });
    const compute_t<T> shift = state.shift();
    visit([&](compute_t<T>& x) {
      const compute_t<T> power = exp_nonpositive_for<T>(x - shift);
      state.sum += power;
      x = keep(x, power);
    });
    return state;
  }
  // The number to subtract before the exponential: the maximum, or 0 while it is -inf.
  DIGLOT_DEVICE compute_t<T> shift() const { return max == none().max ? compute_t<T>(0) : max; }
};

template <typename T>
DIGLOT_DEVICE MaxSum<T> combine(const MaxSum<T>& a, const MaxSum<T>& b) {
  MaxSum<T> result{maximum(a.max, b.max), 0};
  const compute_t<T> shift = result.shift();
  result.sum =
      a.sum * exp_nonpositive_for<T>(a.max - shift) + b.sum * exp_nonpositive_for<T>(b.max - shift);
  return result;
}

// A count of numbers, their mean, and the sum of their squared distances from it. Chan, Golub and
// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
template <typename Compute>
struct Moments {
  Compute count;
  Compute mean;
  Compute squares;

  DIGLOT_DEVICE static Moments none() { return {0, 0, 0}; }
};

template <typename Compute>
DIGLOT_DEVICE Moments<Compute> combine(const Moments<Compute>& a, const Moments<Compute>& b) {
  const Compute count = a.count + b.count;
  // Most parts have equal counts, often 0. They need no division.
  const Compute share = a.count == b.count ? Compute(0.5) : b.count / count;
  const Compute distance = b.mean - a.mean;
  // In this order an empty part adds 0 even where the squared distance overflows.
  const Compute between = distance * (a.count * share) * distance;
  // A long row's parts come to `a` one by one. `between` is mostly far smaller than `a`'s sum.
  // Added to it alone, `between` would be rounded down more often than up: a bias.
  return {count, fma(distance, share, a.mean), a.squares + (b.squares + between)};
}

// One value for each of a thread's rows.
template <typename T, int kRows>
struct PerRow {
  T values[kRows];
};

template <typename State, int kRows>
DIGLOT_DEVICE PerRow<State, kRows> combine(PerRow<State, kRows> a, const PerRow<State, kRows>& b) {
  DIGLOT_UNROLL
  for (int row = 0; row < kRows; ++row) a.values[row] = combine(a.values[row], b.values[row]);
  return a;
}

}  // namespace diglot
