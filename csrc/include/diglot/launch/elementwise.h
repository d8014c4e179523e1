// Host side of an elementwise kernel: chooses between the flat and the strided variant.
#pragma once

#include <type_traits>

#include "diglot/elementwise.cuh"
#include "diglot/launch/plan.h"

namespace diglot {

// The elements of a thread. Tiny arrays are bound by latency: a thread takes one element. In small
// arrays more blocks are worth more than more loads in flight per thread: a thread takes one
// access. Beyond, it takes 16 elements (four accesses at most), which measured best for every type
// where the arithmetic is short. A functor with more of it sets kFlatElements.
constexpr int kElementsPerThread = 16;
template <typename Functor, typename = void>
constexpr int kFlatElements = kElementsPerThread;
template <typename Functor>
constexpr int kFlatElements<Functor, std::void_t<decltype(Functor::kFlatElements)>> =
    Functor::kFlatElements;

// Divides the size up to which arrays are small. Where every thread first waits for parameters in
// memory, fewer threads are worth more: a functor sets kSmallDivisor.
template <typename Functor, typename = void>
constexpr int kSmallDivisor = 1;
template <typename Functor>
constexpr int kSmallDivisor<Functor, std::void_t<decltype(Functor::kSmallDivisor)>> =
    Functor::kSmallDivisor;

template <typename T>
constexpr int kVectorElements = kAccessBytes / static_cast<int>(sizeof(T));
template <typename T>
using TinyShape = FlatShape<1, 1>;
template <typename T>
using SmallShape = FlatShape<1, kVectorElements<T>>;
template <typename T, int kElements = kElementsPerThread>
using LargeShape = FlatShape<std::clamp(kElements / kVectorElements<T>, 1, 4), kVectorElements<T>>;
// A thread of a strided kernel keeps an offset for each access and array. With more than two
// accesses, registers run out in float64.
template <typename T>
using StridedShape = FlatShape<std::min(LargeShape<T>::kAccesses, 2), kVectorElements<T>>;

// How a call walks its elements. No type counts but by its size, so not every type brings this code
// again.
template <int kArrays>
struct Walk {
  enum class Form { kNone, kTiny, kSmall, kLarge, kVectors, kElements };

  Form form = Form::kNone;
  int head = 0;            // elements before the first access
  bool is_narrow = false;  // the offsets of a strided walk have 32 bits
  Layout<kArrays> layout;  // of accesses in a strided walk

  Walk(Planner& planner, const Operand* const (&operands)[kArrays], int element_bytes,
       int small_divisor, const char* large)
      : layout(operands) {
    const int64_t n = layout.numel;
    if (n == 0) return;
    const int elements = kAccessBytes / element_bytes;
    const bool is_flat = have_one_dtype(operands) && layout.is_flat();
    head = is_flat ? common_head(operands, element_bytes) : -1;
    planner.choose(!is_flat    ? "strided"
                   : head >= 0 ? "flat, 16-byte accesses"
                               : "flat",
                   {n}, {operands[0]});
    const char*& variant = planner.plan.variant;
    if (is_flat && n <= planner.tuned(Tunable::kElementwiseTinyElements)) {
      form = Form::kTiny, head = 0, variant = "flat, 1 element per thread";
    } else if (head >= 0) {
      const int64_t few = planner.tuned(Tunable::kElementwiseSmallVectors) / small_divisor;
      const bool is_small = (n - head) / elements < few;
      form = is_small ? Form::kSmall : Form::kLarge;
      variant = is_small ? "flat, 1 access per thread" : large;
    } else if (take_vectors(operands, elements)) {
      form = Form::kVectors, layout = layout.in_vectors(elements), is_narrow = layout.is_narrow();
      variant = is_narrow ? "strided, 16-byte accesses, 32-bit offsets"
                          : "strided, 16-byte accesses, 64-bit offsets";
    } else {
      form = Form::kElements, is_narrow = layout.is_narrow();
      variant = is_narrow ? "strided, 32-bit offsets" : "strided, 64-bit offsets";
    }
  }

 private:
  // Elements to step over until all the pointers are multiples of 16 bytes; -1 if no number does it
  // for all.
  static int common_head(const Operand* const (&operands)[kArrays], int element_bytes) {
    const uintptr_t remainder = operands[0]->remainder;
    for (const Operand* operand : operands) {
      if (!operand->is_aligned(element_bytes) || operand->remainder != remainder) return -1;
    }
    return static_cast<int>((kAccessBytes - remainder) % kAccessBytes / element_bytes);
  }

  // Whether 16-byte accesses along the fastest dimension serve all operands. No row may end within
  // an access. Every operand must be aligned, or broadcast along that dimension.
  bool take_vectors(const Operand* const (&operands)[kArrays], int elements) const {
    if (!have_one_dtype(operands) || !layout.has_vectors(0, elements)) return false;
    for (int a = 0; a < kArrays; ++a) {
      const bool is_broadcast = layout.strides[0][a] == 0;
      if (!is_broadcast && !(operands[a]->is_aligned() && layout.has_vectors(a, elements))) {
        return false;
      }
    }
    return true;
  }
};

// The row-major indices of an operand's elements, as one more operand of the layout, for a function
// with an index. It is the last operand, without memory. Its address, zero, rules out a head: an
// access starts at a multiple of its elements.
inline Operand index_operand(const Operand& operand) {
  Operand index = operand;
  index.number = Address<void>::kNull, index.remainder = 0;
  index.set_contiguous_strides();
  return index;
}

// The index type of a Strides.
template <typename Strides>
struct IndexOf;
template <int kArrays, typename Index>
struct IndexOf<Strides<kArrays, Index>> {
  using type = Index;
};
template <typename Strides>
using index_of = typename IndexOf<std::decay_t<Strides>>::type;

// Plans flat(shape, blocks, n, head) if all operands are of type T and lie in memory in the same
// dense order. Otherwise plans strided(shape, blocks, n, strides) for each slice of the layout; n
// then counts accesses. The first operand is the output, of type T. `shape` is a FlatShape, with
// one element per access where types differ. `strides` is a Strides of either index type.
// `Functor` is what the kernels apply, if that is one type.
template <typename T, typename Functor = void, int kArrays, typename Flat, typename Strided>
void elementwise_launch(Planner& planner, const Operand* const (&operands)[kArrays], Flat flat,
                        Strided strided) {
  using Form = typename Walk<kArrays>::Form;
  constexpr int kLarge = kFlatElements<Functor>;
  static_assert(kLarge == 8 || kLarge == 16);
  const Walk<kArrays> walk(
      planner, operands, static_cast<int>(sizeof(T)), kSmallDivisor<Functor>,
      kLarge == 8 ? "flat, 8 elements per thread" : "flat, 16 elements per thread");
  const int64_t n = walk.layout.numel;
  const auto run_flat = [&](auto shape) {
    constexpr int64_t kBlockAccesses = kElementwiseThreads * decltype(shape)::kAccesses;
    const int64_t accesses = (n - walk.head) / decltype(shape)::kElements;
    flat(shape, blocks_for(accesses, kBlockAccesses), n, walk.head);
  };
  const auto run_strided = [&](auto shape) {
    constexpr int64_t kBlockAccesses = kElementwiseThreads * decltype(shape)::kAccesses;
    const auto run = [&](const auto& slices) {
      for (const auto& [count, strides] : slices) {
        strided(shape, blocks_for(count, kBlockAccesses), count, strides);
      }
    };
    if (walk.is_narrow) {
      run(walk.layout.template slices<uint32_t>());
    } else {
      run(walk.layout.template slices<int64_t>());
    }
  };
  switch (walk.form) {
    case Form::kNone: return;
    case Form::kTiny: return run_flat(TinyShape<T>{});
    case Form::kSmall: return run_flat(SmallShape<T>{});
    case Form::kLarge: return run_flat(LargeShape<T, kLarge>{});
    case Form::kVectors: return run_strided(StridedShape<T>{});
    case Form::kElements: return run_strided(FlatShape<kStridedElements, 1>{});
  }
}

// T for each operand of a pack.
template <typename T, typename Operand>
struct TypeOf {
  using type = T;
};

// Plans an op's launch, output = functor(inputs...), in either walk. All operands are of type T.
// `functor` is a functor, or a function that makes one from `Arguments` where it needs numbers of
// the call.
template <typename T, typename Held, typename... Inputs>
void map_elements(Planner& planner, const Held& functor, const Operand& output,
                  const Inputs&... inputs) {
  using Functor = std::decay_t<decltype(resolve(functor, std::declval<const Arguments&>()))>;
  const auto launch_of = [](unsigned blocks) {
    Launch how{blocks, kElementwiseThreads};
    how.uses_pdl = Prepared<Functor>::kWaits;
    return how;
  };
  const auto flat = [&](auto shape, unsigned blocks, int64_t n, int head) {
    planner.add<elementwise_flat<Functor, decltype(shape), T, typename TypeOf<T, Inputs>::type...>>(
        launch_of(blocks), n, head, inputs.template as<const T>()..., functor, output.as<T>());
  };
  const auto strided = [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
    planner.add<elementwise_strided<Functor, decltype(shape), std::decay_t<decltype(strides)>, T,
                                    typename TypeOf<T, Inputs>::type...>>(
        launch_of(blocks), n, strides, inputs.template as<const T>()..., functor, output.as<T>());
  };
  if constexpr (kTakesIndex<typename Prepared<Functor>::type,
                            Vector<typename TypeOf<T, Inputs>::type, 1>...>) {
    const Operand index = index_operand(output);
    elementwise_launch<T, Functor>(planner, {&output, &inputs..., &index}, flat, strided);
  } else {
    elementwise_launch<T, Functor>(planner, {&output, &inputs...}, flat, strided);
  }
}

}  // namespace diglot
