// An elementwise kernel walks its arrays in one of two ways. Flat: all arrays lie in memory in the
// same dense order. Strided: any others. Every op has a kernel for each, which maps a functor. Twin
// of triton_ops/lib/elementwise.py and elementwise_kernels.py.
#pragma once

#include <type_traits>
#include <utility>

#include "diglot/strides.cuh"
#include "diglot/sync/pdl.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

constexpr int kElementwiseThreads = 128;
// Elements that each thread has in flight per array where it accesses them one by one.
constexpr int kStridedElements = 4;

// A thread's work: kAccesses accesses per array, of kElements elements each.
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

// Whether a function takes whole accesses and the row-major index of their first element, as
// function(index, accesses...), because its result depends on an element's position.
template <typename Function, typename... Accesses>
constexpr bool kTakesIndex = std::is_invocable_v<const Function&, int64_t, const Accesses&...>;

// The function that a kernel applies: the functor's prepare(), which reads parameters from memory
// once per thread, or else the functor itself. A small kernel may just have written the parameters,
// so the launch overlaps that kernel's end, and waits for it before it reads anything. A thread
// prepares only after it has issued its loads, so that their latencies overlap.
template <typename Functor, typename = void>
struct Prepared {
  static constexpr bool kWaits = false;
  using type = Functor;
  DIGLOT_DEVICE static void wait() {}
  DIGLOT_DEVICE static const Functor& make(const Functor& functor) { return functor; }
};
template <typename Functor>
struct Prepared<Functor, std::void_t<decltype(std::declval<const Functor&>().prepare())>> {
  static constexpr bool kWaits = true;
  using type = decltype(std::declval<const Functor&>().prepare());
  DIGLOT_DEVICE static void wait() { grid_dependency_wait(); }
  DIGLOT_DEVICE static type make(const Functor& functor) { return functor.prepare(); }
};

// Applies a function to an access of each input. A function without an index takes the elements one
// by one: function(elements...).
template <typename T, int kElements, typename Function, typename... Accesses>
DIGLOT_DEVICE Vector<T, kElements> map_access(const Function& function,
                                              [[maybe_unused]] int64_t index,
                                              const Accesses&... loaded) {
  if constexpr (kTakesIndex<Function, Accesses...>) {
    return function(index, loaded...);
  } else {
    Vector<T, kElements> result;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) result[i] = function(loaded[i]...);
    return result;
  }
}

// Issues all earlier loads before what follows. Otherwise the compiler delays them to keep
// registers free.
DIGLOT_DEVICE void keep_loads_first() {
#if defined(__CUDA_ARCH__)
  asm volatile("" ::: "memory");
#endif
}

// Whether a function has so much arithmetic that ptxas delays loads until late in it, and loses by
// that: it sets kHoldsLoads.
template <typename Function, typename = void>
constexpr bool kHoldsLoads = false;
template <typename Function>
constexpr bool kHoldsLoads<Function, std::void_t<decltype(Function::kHoldsLoads)>> =
    Function::kHoldsLoads;

// Makes the first of a thread's accesses depend on the others, so that all are issued before any
// arithmetic. An exclusive or with zero does that. ptxas does not see through it, because it does
// not know the sign of n.
template <typename Access, int kAccesses>
DIGLOT_DEVICE void hold_first([[maybe_unused]] int64_t n,
                              [[maybe_unused]] Access (&accesses)[kAccesses]) {
#if defined(__CUDA_ARCH__)
  uint32_t zero = static_cast<uint32_t>(n >> 63), word;
  DIGLOT_UNROLL
  for (int a = 1; a < kAccesses; ++a) {
    memcpy(&word, &accesses[a], sizeof(word));
    asm volatile("and.b32 %0, %0, %1;" : "+r"(zero) : "r"(word));
  }
  memcpy(&word, &accesses[0], sizeof(word));
  asm volatile("xor.b32 %0, %0, %1;" : "+r"(word) : "r"(zero));
  memcpy(&accesses[0], &word, sizeof(word));
#endif
}

// output[i] = function(inputs[i]...) for i < n, in accesses of Shape::kElements elements. Each
// thread has Shape::kAccesses accesses to each array in flight.
//
// The first `head` elements bring every array to a multiple of an access's size; the launcher makes
// sure that one head serves all arrays. The first block takes head and tail element by element, at
// most two scalar accesses for each of its threads.
template <typename Shape, typename T, typename Functor, typename... Inputs>
DIGLOT_DEVICE void map_flat(int64_t n, int head, Functor functor, T* output,
                            const Inputs*... inputs) {
  using Function = typename Prepared<Functor>::type;
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
    const auto store = [&](auto... loaded) {
      if constexpr (kTakesIndex<Function, decltype(loaded.values[0])...>) keep_loads_first();
      if constexpr (kHoldsLoads<Function> && kAccesses > 1) (hold_first(n, loaded.values), ...);
      const auto& function = Prepared<Functor>::make(functor);
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const int64_t index = head + (first + a * kElementwiseThreads) * kElements;
        store_vector(output + index,
                     map_access<T, kElements>(function, index, loaded.values[a]...));
      }
    };
    store(load(inputs)...);
  } else {
    const auto& function = Prepared<Functor>::make(functor);
    for (int64_t vector = first; vector < vectors; vector += kElementwiseThreads) {
      const int64_t index = head + vector * kElements;
      store_vector(
          output + index,
          map_access<T, kElements>(function, index, load_vector<T, kElements>(inputs + index)...));
    }
  }

  if (kElements > 1 && blockIdx.x == 0) {
    const int64_t tail = head + vectors * kElements;
    const auto& function = Prepared<Functor>::make(functor);
    const auto map_one = [&](int64_t i) {
      store_vector(output + i, map_access<T, 1>(function, i, load_vector<T, 1>(inputs + i)...));
    };
    // A function with an index has no head, which would shift every access: see index_operand.
    constexpr bool kHasHead = !kTakesIndex<Function, Vector<Inputs, 1>...>;
    if (kHasHead && threadIdx.x < head) map_one(threadIdx.x);
    if (threadIdx.x < n - tail) map_one(tail + threadIdx.x);
  }
}

// The same over strided arrays: `n` and `strides` count accesses. An access computes its offsets
// once for all of its elements. An array whose fastest stride is 0 has one element per access. For
// a function with an index, the last array of `strides` has the row-major indices.
template <typename Shape, typename T, int kArrays, typename Index, typename Functor,
          typename... Inputs>
DIGLOT_DEVICE void map_strided(int64_t n, const Strides<kArrays, Index>& strides, Functor functor,
                               T* output, const Inputs*... inputs) {
  using Function = typename Prepared<Functor>::type;
  constexpr int kAccesses = Shape::kAccesses;
  constexpr int kElements = Shape::kElements;
  constexpr bool kIsIndexed = kTakesIndex<Function, Vector<Inputs, kElements>...>;
  static_assert(kArrays == 1 + sizeof...(Inputs) + kIsIndexed);
  struct Accesses {
    Vector<T, kElements> values[kAccesses];
  };
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (kElementwiseThreads * kAccesses) + threadIdx.x;
  typename Strides<kArrays, Index>::Offsets offsets[kAccesses];
  DIGLOT_UNROLL
  for (int a = 0; a < kAccesses; ++a) {
    // Accesses past the end load the last one again: unconditional loads are all in flight at once.
    // In place, its owner may write it meanwhile; nobody uses the value.
    const int64_t linear = first + a * kElementwiseThreads;
    offsets[a] = strides.offsets(static_cast<Index>(linear < n ? linear : n - 1));
  }
  const auto load = [&](int array, const T* input) {
    Accesses loaded;
    if (kElements == 1 || strides.strides[0][array] != 0) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        loaded.values[a] = load_vector<T, kElements>(input + offsets[a].array[array]);
      }
    } else {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const T value = input[offsets[a].array[array]];
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) loaded.values[a][i] = value;
      }
    }
    return loaded;
  };
  const auto store = [&](const auto&... loaded) {
    if constexpr (kIsIndexed) keep_loads_first();
    const auto& function = Prepared<Functor>::make(functor);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      const int64_t index = kIsIndexed ? offsets[a].array[kArrays - 1] : 0;
      const auto result = map_access<T, kElements>(function, index, loaded.values[a]...);
      if (first + a * kElementwiseThreads < n) store_vector(output + offsets[a].array[0], result);
    }
  };
  number_inputs([&](auto... numbers) { store(load(decltype(numbers)::value, inputs)...); },
                std::make_integer_sequence<int, sizeof...(Inputs)>{});
}

// The minimum of resident blocks per SM (__launch_bounds__), which limits registers. With 0 the
// compiler decides; a functor sets kFlatBlocks<accesses of a thread> or kStridedBlocks where
// another number is better.
template <typename Functor, int kAccesses, typename = void>
constexpr int kFlatBlocks = 0;
template <typename Functor, int kAccesses>
constexpr int kFlatBlocks<Functor, kAccesses,
                          std::void_t<decltype(Functor::template kFlatBlocks<kAccesses>)>> =
    Functor::template kFlatBlocks<kAccesses>;
template <typename Functor, typename = void>
constexpr int kStridedBlocks = 0;
template <typename Functor>
constexpr int kStridedBlocks<Functor, std::void_t<decltype(Functor::kStridedBlocks)>> =
    Functor::kStridedBlocks;

// output = functor(inputs...): the kernels of every op.
template <typename Functor, typename Shape, typename T, typename... Inputs>
__global__ void __launch_bounds__(kElementwiseThreads, kFlatBlocks<Functor, Shape::kAccesses>)
    elementwise_flat(int64_t n, int head, const Inputs*... inputs, Functor functor, T* output) {
  Prepared<Functor>::wait();
  map_flat<Shape>(n, head, functor, output, inputs...);
}

template <typename Functor, typename Shape, typename Strides, typename T, typename... Inputs>
__global__ void __launch_bounds__(kElementwiseThreads, kStridedBlocks<Functor>)
    elementwise_strided(int64_t n, Strides strides, const Inputs*... inputs, Functor functor,
                        T* output) {
  Prepared<Functor>::wait();
  map_strided<Shape>(n, strides, functor, output, inputs...);
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
