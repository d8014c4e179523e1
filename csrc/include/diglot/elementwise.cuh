// The two ways an elementwise kernel walks its arrays: flat, when all of them lie in memory in the
// same dense order, and strided otherwise. Twin of triton_ops/lib/elementwise.py.
#pragma once

#include <type_traits>
#include <utility>

#include "diglot/strides.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

constexpr int kElementwiseThreads = 128;
// Elements that each thread has in flight per array where it accesses them one by one.
constexpr int kStridedElements = 4;

// How a thread of a kernel works: so many accesses per array, of so many elements each.
template <int kAccesses_, int kElements_>
struct FlatShape {
  static constexpr int kAccesses = kAccesses_;
  static constexpr int kElements = kElements_;
};

// Calls function with the arrays' numbers, as types: the output is 0, the inputs follow.
template <typename Function, int... kInput>
DIGLOT_DEVICE void number_inputs(Function function, std::integer_sequence<int, kInput...>) {
  function(std::integral_constant<int, kInput + 1>{}...);
}

// output[i] = function(inputs[i]...) for i < n, in accesses of Shape::kElements, of which
// Shape::kAccesses per thread and array are in flight at once.
//
// The first `head` elements bring every array to a multiple of an access's size (the launcher makes
// sure that one head serves them all). They and the tail are done one by one by the first block,
// which costs its threads at most two scalar accesses.
template <typename Shape, typename T, typename Function, typename... Inputs>
DIGLOT_DEVICE void flat_map(int64_t n, int head, Function function, T* output,
                            const Inputs*... inputs) {
  constexpr int kAccesses = Shape::kAccesses;
  constexpr int kElements = Shape::kElements;
  constexpr int kBlockVectors = kElementwiseThreads * kAccesses;
  const int64_t vectors = (n - head) / kElements;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockVectors + threadIdx.x;
  using Access = Vector<T, kElements>;

  if (first - threadIdx.x + kBlockVectors <= vectors) {
    // A whole block. Every load is issued before the first use, so that their latencies overlap.
    struct Accesses {
      Access values[kAccesses];
    };
    const auto load = [&](const T* input) {
      Accesses loaded;
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const int64_t vector = first + a * kElementwiseThreads;
        loaded.values[a] = load_vector<T, kElements>(input + head + vector * kElements);
      }
      return loaded;
    };
    const auto store = [&](const auto&... loaded) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        Access result;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) result[i] = function(loaded.values[a][i]...);
        const int64_t vector = first + a * kElementwiseThreads;
        store_vector(output + head + vector * kElements, result);
      }
    };
    store(load(inputs)...);
  } else {
    for (int64_t vector = first; vector < vectors; vector += kElementwiseThreads) {
      const auto store = [&](const auto&... loaded) {
        Access result;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) result[i] = function(loaded[i]...);
        store_vector(output + head + vector * kElements, result);
      };
      store(load_vector<T, kElements>(inputs + head + vector * kElements)...);
    }
  }

  if (kElements > 1 && blockIdx.x == 0) {
    const int64_t tail = head + vectors * kElements;
    if (threadIdx.x < head) output[threadIdx.x] = function(inputs[threadIdx.x]...);
    if (threadIdx.x < n - tail) {
      output[tail + threadIdx.x] = function(inputs[tail + threadIdx.x]...);
    }
  }
}

// The same over strided arrays: `n` and `strides` count accesses, and each has its offsets computed
// once for all of its elements. An array whose fastest stride is 0 has one element per access.
template <typename Shape, typename T, typename Index, typename Function, typename... Inputs>
DIGLOT_DEVICE void strided_map(int64_t n, const Strides<1 + sizeof...(Inputs), Index>& strides,
                               Function function, T* output, const Inputs*... inputs) {
  constexpr int kAccesses = Shape::kAccesses;
  constexpr int kElements = Shape::kElements;
  struct Accesses {
    Vector<T, kElements> values[kAccesses];
  };
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (kElementwiseThreads * kAccesses) + threadIdx.x;
  typename Strides<1 + sizeof...(Inputs), Index>::Offsets at[kAccesses];
  DIGLOT_UNROLL
  for (int a = 0; a < kAccesses; ++a) {
    // Past the end the last is loaded again: loads without a condition are all in flight at once.
    const int64_t linear = first + a * kElementwiseThreads;
    at[a] = strides.offsets(static_cast<Index>(linear < n ? linear : n - 1));
  }
  const auto load = [&](int array, const T* input) {
    Accesses loaded;
    if (kElements == 1 || strides.strides[0][array] != 0) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        loaded.values[a] = load_vector<T, kElements>(input + at[a].of[array]);
      }
    } else {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const T value = input[at[a].of[array]];
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) loaded.values[a][i] = value;
      }
    }
    return loaded;
  };
  const auto store = [&](const auto&... loaded) {
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      Vector<T, kElements> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) result[i] = function(loaded.values[a][i]...);
      if (first + a * kElementwiseThreads < n) store_vector(output + at[a].of[0], result);
    }
  };
  number_inputs([&](auto... numbers) { store(load(decltype(numbers)::value, inputs)...); },
                std::make_integer_sequence<int, sizeof...(Inputs)>{});
}

// Calls function(offsets) for every element index below n, with the offsets of the element in each
// array of `strides`. Neighbouring threads take neighbouring elements.
template <int kArrays, typename Index, typename Function>
DIGLOT_DEVICE void strided_for_each(int64_t n, const Strides<kArrays, Index>& strides,
                                    Function function) {
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (kElementwiseThreads * kStridedElements) + threadIdx.x;
  DIGLOT_UNROLL
  for (int e = 0; e < kStridedElements; ++e) {
    const int64_t linear = first + e * kElementwiseThreads;
    if (linear < n) function(strides.offsets(static_cast<Index>(linear)));
  }
}

}  // namespace diglot
