// Host side of an elementwise kernel: chooses between the flat and the strided variant.
#pragma once

#include <type_traits>

#include "diglot/elementwise.cuh"
#include "diglot/launch/plan.h"

namespace diglot {

// The elements of a thread. Tiny arrays are bound by latency: a thread takes one element. In small
// arrays more blocks are worth more than more loads in flight per thread: a thread takes one
// access. Beyond, it takes 16 elements (four accesses at most), which measured best for every type.
constexpr int kElementsPerThread = 16;

template <typename T>
constexpr int kVectorElements = kAccessBytes / static_cast<int>(sizeof(T));
template <typename T>
using TinyShape = FlatShape<1, 1>;
template <typename T>
using SmallShape = FlatShape<1, kVectorElements<T>>;
template <typename T>
using LargeShape =
    FlatShape<std::clamp(kElementsPerThread / kVectorElements<T>, 1, 4), kVectorElements<T>>;
// A thread of a strided kernel keeps an offset for each access and array. With more than two
// accesses, registers run out in float64.
template <typename T>
using StridedShape = FlatShape<std::min(LargeShape<T>::kAccesses, 2), kVectorElements<T>>;

// Elements to step over until all the pointers are multiples of 16 bytes; -1 if no number does it
// for all.
template <typename T, int kArrays>
int common_head(const Operand* const (&operands)[kArrays]) {
  const auto head_of = [](const Operand& operand) {
    return elements_to_alignment(reinterpret_cast<const T*>(operand.remainder));
  };
  const int head = head_of(*operands[0]);
  for (const Operand* operand : operands) {
    if (!operand->is_aligned(sizeof(T)) || head_of(*operand) != head) return -1;
  }
  return head;
}

// Whether 16-byte accesses along the fastest dimension serve all operands. No row may end within an
// access. Every operand must be aligned, or broadcast along that dimension.
template <typename T, int kArrays>
bool take_vectors(const Operand* const (&operands)[kArrays], const Layout<kArrays>& layout) {
  if (!have_one_dtype(operands) || !layout.has_vectors(0, kVectorElements<T>)) return false;
  for (int a = 0; a < kArrays; ++a) {
    const bool is_broadcast = layout.strides[0][a] == 0;
    if (!is_broadcast &&
        !(operands[a]->is_aligned() && layout.has_vectors(a, kVectorElements<T>))) {
      return false;
    }
  }
  return true;
}

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
template <typename T, int kArrays, typename Flat, typename Strided>
void elementwise_launch(Planner& planner, const Operand* const (&operands)[kArrays], Flat flat,
                        Strided strided) {
  const Layout<kArrays> layout(operands);
  const int64_t n = layout.numel;
  if (n == 0) return;
  const bool is_flat = have_one_dtype(operands) && layout.is_flat();
  const int head = is_flat ? common_head<T>(operands) : -1;
  planner.choose(!is_flat    ? "strided"
                 : head >= 0 ? "flat, 16-byte accesses"
                             : "flat",
                 {n}, {operands[0]});
  if (is_flat && n <= planner.tuned(Tunable::kElementwiseTinyElements)) {
    planner.plan.variant = "flat, 1 element per thread";
    flat(TinyShape<T>{}, blocks_for(n, kElementwiseThreads), n, 0);
  } else if (head >= 0) {
    const int64_t vectors = (n - head) / kVectorElements<T>;
    if (vectors < planner.tuned(Tunable::kElementwiseSmallVectors)) {
      planner.plan.variant = "flat, 1 access per thread";
      flat(SmallShape<T>{}, blocks_for(vectors, kElementwiseThreads), n, head);
    } else {
      planner.plan.variant = "flat, 16 elements per thread";
      constexpr int64_t kBlockVectors = kElementwiseThreads * LargeShape<T>::kAccesses;
      flat(LargeShape<T>{}, blocks_for(vectors, kBlockVectors), n, head);
    }
  } else {
    const auto run = [&](auto shape, const Layout<kArrays>& accesses, const char* narrow,
                         const char* wide) {
      const auto launch_slice = [&](int64_t slice, const auto& strides) {
        constexpr int64_t kBlockAccesses = kElementwiseThreads * decltype(shape)::kAccesses;
        strided(shape, blocks_for(slice, kBlockAccesses), slice, strides);
      };
      const bool is_narrow = accesses.is_narrow();
      planner.plan.variant = is_narrow ? narrow : wide;
      if (is_narrow) {
        accesses.template for_each_slice<uint32_t>(launch_slice);
      } else {
        accesses.template for_each_slice<int64_t>(launch_slice);
      }
    };
    if (take_vectors<T>(operands, layout)) {
      run(StridedShape<T>{}, layout.in_vectors(kVectorElements<T>),
          "strided, 16-byte accesses, 32-bit offsets", "strided, 16-byte accesses, 64-bit offsets");
    } else {
      run(FlatShape<kStridedElements, 1>{}, layout, "strided, 32-bit offsets",
          "strided, 64-bit offsets");
    }
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
  const auto flat = [&](auto shape, unsigned blocks, int64_t n, int head) {
    planner.add<elementwise_flat<Functor, decltype(shape), T, typename TypeOf<T, Inputs>::type...>>(
        {blocks, kElementwiseThreads}, n, head, inputs.template as<const T>()..., functor,
        output.as<T>());
  };
  const auto strided = [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
    planner.add<elementwise_strided<Functor, decltype(shape), std::decay_t<decltype(strides)>, T,
                                    typename TypeOf<T, Inputs>::type...>>(
        {blocks, kElementwiseThreads}, n, strides, inputs.template as<const T>()..., functor,
        output.as<T>());
  };
  if constexpr (kTakesIndex<typename Prepared<Functor>::type,
                            Vector<typename TypeOf<T, Inputs>::type, 1>...>) {
    const Operand index = index_operand(output);
    elementwise_launch<T>(planner, {&output, &inputs..., &index}, flat, strided);
  } else {
    elementwise_launch<T>(planner, {&output, &inputs...}, flat, strided);
  }
}

}  // namespace diglot
