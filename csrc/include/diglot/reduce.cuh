// Reductions across the lanes of a warp and the threads of a block, of any state with any way of
// combining two, in one fixed order; and the states: sums, maximum with a sum of exponentials,
// moments. Twin of triton_ops/lib/reduce.py.
//
//   MaxSum<float> state = MaxSum<float>::none();
//   for (...) state = combine(state, ...);
//   state = block_reduce<kThreads>(state);  // every thread has it
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "diglot/math.cuh"
#include "diglot/types.cuh"

namespace diglot {

constexpr int kWarpLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Arrays that are reduced together.
template <typename T, int kInputs>
struct Inputs {
  const T* of[kInputs];
};

// kCount sums.
template <typename Compute, int kCount>
struct Sums {
  Compute of[kCount];

  DIGLOT_DEVICE static Sums none() { return {}; }
};

template <typename Compute, int kCount>
DIGLOT_DEVICE Sums<Compute, kCount> combine(Sums<Compute, kCount> a,
                                            const Sums<Compute, kCount>& b) {
  DIGLOT_UNROLL
  for (int i = 0; i < kCount; ++i) a.of[i] += b.of[i];
  return a;
}

// e^x for x <= 0, as exactly as an element of type T can tell.
template <typename T>
DIGLOT_DEVICE compute_t<T> exp_nonpositive_for(compute_t<T> x) {
  if constexpr (sizeof(T) == 2) {
    return exp2_approximate(x * kLog2E);
  } else {
    return exp_nonpositive(x);
  }
}

// The maximum of elements of type T, and the sum of e^(x - max). Sums of parts are brought to a
// common maximum: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018,
// arXiv:1805.02867. While no element is greater than -inf, the sum is of e^x, which is 0, or NaN.
template <typename T>
struct MaxSum {
  compute_t<T> max;
  compute_t<T> sum;

  DIGLOT_DEVICE static MaxSum none() {
    return {-std::numeric_limits<compute_t<T>>::infinity(), compute_t<T>(0)};
  }
  // Of the elements that visit(function) calls function with, always the same.
  template <typename Visit>
  DIGLOT_DEVICE static MaxSum of(Visit visit) {
    MaxSum state = none();
    visit([&](compute_t<T> x) { state.max = maximum(state.max, x); });
    const compute_t<T> shift = state.shift();
    visit([&](compute_t<T> x) { state.sum += exp_nonpositive_for<T>(x - shift); });
    return state;
  }
  // The same where replace(function), called once, has function(x) take the place of each element
  // x: keep(x, e^(x - max)).
  template <typename Visit, typename Replace, typename Keep>
  DIGLOT_DEVICE static MaxSum of_replaced(Visit visit, Replace replace, Keep keep) {
    MaxSum state = none();
    visit([&](compute_t<T> x) { state.max = maximum(state.max, x); });
    const compute_t<T> shift = state.shift();
    replace([&](compute_t<T> x) {
      const compute_t<T> power = exp_nonpositive_for<T>(x - shift);
      state.sum += power;
      return keep(x, power);
    });
    return state;
  }
  // What is subtracted before the exponential.
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

// How many numbers, their mean, and the sum of the squares of their distances from it. Chan, Golub
// and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
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
  // Mostly parts are alike, or both nothing, and a division takes long.
  const Compute share = a.count == b.count ? Compute(0.5) : b.count / count;
  const Compute distance = b.mean - a.mean;
  // In this order a part that is empty adds nothing, however great the square of the distance is.
  const Compute between = distance * (a.count * share) * distance;
  // A long row's parts come to `a` one by one. What is between is mostly far below its mean: added
  // to so large a sum by itself, it would be rounded down more than up, always to the same side.
  return {count, fma(distance, share, a.mean), a.squares + (b.squares + between)};
}

// A state of which each word goes through a shuffle of words.
template <typename State, typename Shuffle>
DIGLOT_DEVICE State shuffle_words(const State& state, Shuffle shuffle) {
  constexpr int kWords = sizeof(State) / sizeof(uint32_t);
  uint32_t words[kWords];
  memcpy(words, &state, sizeof(state));
  DIGLOT_UNROLL
  for (int i = 0; i < kWords; ++i) words[i] = shuffle(words[i]);
  State result;
  memcpy(&result, words, sizeof(state));
  return result;
}

// The state of a lane so many further on; one's own at the end of the warp.
template <typename State>
DIGLOT_DEVICE State shuffle_down(const State& state, int lanes) {
  return shuffle_words(state,
                       [=](uint32_t word) { return __shfl_down_sync(kAllLanes, word, lanes); });
}

// The state of the lane of this number.
template <typename State>
DIGLOT_DEVICE State shuffle_from(const State& state, int lane) {
  return shuffle_words(state, [=](uint32_t word) { return __shfl_sync(kAllLanes, word, lane); });
}

// The state of the lane whose number differs in the bits of `lanes`.
template <typename State>
DIGLOT_DEVICE State shuffle_across(const State& state, int lanes) {
  return shuffle_words(state,
                       [=](uint32_t word) { return __shfl_xor_sync(kAllLanes, word, lanes); });
}

// The first lane gets the states of `kLanes` lanes combined, pairwise.
template <int kLanes = kWarpLanes, typename State>
DIGLOT_DEVICE State warp_reduce(State state) {
  DIGLOT_UNROLL
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    state = combine(state, shuffle_down(state, lanes));
  }
  return state;
}

// Each lane gets the states combined of its group of `lanes` neighbours, a power of two.
template <typename State>
DIGLOT_DEVICE State lanes_reduce(State state, int lanes) {
  const int first = static_cast<int>(threadIdx.x) % kWarpLanes & ~(lanes - 1);
  for (int apart = lanes / 2; apart > 0; apart /= 2) {
    state = combine(state, shuffle_down(state, apart));
  }
  return shuffle_from(state, first);
}

// The same, sooner, where combine(a, b) is combine(b, a) to the last bit, as it is for sums.
template <typename State>
DIGLOT_DEVICE State lanes_sum(State state, int lanes) {
  DIGLOT_UNROLL
  for (int apart = 1; apart < kWarpLanes; apart *= 2) {
    if (apart < lanes) state = combine(state, shuffle_across(state, apart));
  }
  return state;
}

// The same of a number that is known to the compiler.
template <int kLanes, typename State>
DIGLOT_DEVICE State lanes_sum(State state) {
  DIGLOT_UNROLL
  for (int apart = 1; apart < kLanes; apart *= 2) {
    state = combine(state, shuffle_across(state, apart));
  }
  return state;
}

// A barrier of so many neighbouring threads of a block, whole warps, of which this is the part of
// this number, below 15; all parts come to as many. The interpreter's is one of the block.
DIGLOT_DEVICE void part_barrier([[maybe_unused]] int number, [[maybe_unused]] int threads) {
#if defined(__CUDA_ARCH__)
  asm volatile("bar.sync %0, %1;" : : "r"(number + 1), "r"(threads) : "memory");
#else
  __syncthreads();
#endif
}

// Every thread of a block of kThreads threads gets all their states combined: within each warp,
// then across warps. All threads call it.
template <int kThreads, typename State>
DIGLOT_DEVICE State block_reduce(State state) {
  constexpr int kWarps = kThreads / kWarpLanes;
  static_assert(kWarps * kWarpLanes == kThreads && (kWarps & (kWarps - 1)) == 0);
  __shared__ State states[kWarps + 1];
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  state = warp_reduce(state);
  if (lane == 0) states[warp] = state;
  __syncthreads();
  if (warp == 0) {
    state = warp_reduce<kWarps>(states[lane % kWarps]);
    if (lane == 0) states[kWarps] = state;
  }
  // Who calls it again has read the result before anyone writes to it: all warps come here first.
  __syncthreads();
  return states[kWarps];
}

}  // namespace diglot
