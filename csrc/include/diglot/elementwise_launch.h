// Host side of an elementwise kernel: chooses between the flat and the strided variant.
#pragma once

#include <type_traits>

#include "diglot/elementwise.cuh"
#include "diglot/launch.cuh"
#include "diglot/operand.h"

namespace diglot {

// Up to this many elements a launch is bound by latency, and a thread takes one. Up to this many
// 16-byte vectors, eight blocks for each of an H200's 132 multiprocessors, more blocks are worth
// more than more loads in flight per thread. Beyond, a thread takes 16 elements (four accesses at
// most), which measured best for every type.
constexpr int64_t kTinyElements = int64_t{1} << 17;
constexpr int64_t kSmallVectors = 8 * 132 * kElementwiseThreads;
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

// Elements to step over until all the pointers are multiples of 16 bytes; -1 if they never are at
// the same time.
template <typename T, int kArrays>
int common_head(const Operand* const (&operands)[kArrays]) {
  const int head = elements_to_alignment(operands[0]->template as<const T>());
  for (const Operand* operand : operands) {
    if (reinterpret_cast<uintptr_t>(operand->data) % sizeof(T) != 0 ||
        elements_to_alignment(operand->template as<const T>()) != head) {
      return -1;
    }
  }
  return head;
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

// Runs flat(shape, blocks, n, head) if all operands are of type T and lie in memory in the same
// dense order, and strided(blocks, n, strides) for each slice of the layout otherwise. The first
// operand is the output, whose type T is. `shape` is a FlatShape, `strides` a Strides of either
// index type.
template <typename T, int kArrays, typename Flat, typename Strided>
void elementwise_launch(const Operand* const (&operands)[kArrays], Flat flat, Strided strided) {
  const Layout<kArrays> layout(operands);
  const int64_t n = layout.numel;
  if (n == 0) return;
  const bool is_flat = have_one_dtype(operands) && layout.is_flat();
  const int head = is_flat ? common_head<T>(operands) : -1;
  if (is_flat && n <= kTinyElements) {
    last_variant() = "flat, 1 element per thread";
    flat(TinyShape<T>{}, blocks_for(n, kElementwiseThreads), n, 0);
  } else if (head >= 0) {
    const int64_t vectors = (n - head) / kVectorElements<T>;
    if (vectors < kSmallVectors) {
      last_variant() = "flat, 1 access per thread";
      flat(SmallShape<T>{}, blocks_for(vectors, kElementwiseThreads), n, head);
    } else {
      last_variant() = "flat, 16 elements per thread";
      constexpr int64_t kBlockVectors = kElementwiseThreads * LargeShape<T>::kAccesses;
      flat(LargeShape<T>{}, blocks_for(vectors, kBlockVectors), n, head);
    }
  } else {
    const auto launch_slice = [&](int64_t elements, const auto& strides) {
      strided(blocks_for(elements, kElementwiseThreads * kStridedElements), elements, strides);
    };
    if (layout.is_narrow()) {
      last_variant() = "strided, 32-bit offsets";
      layout.template for_each_slice<uint32_t>(launch_slice);
    } else {
      last_variant() = "strided, 64-bit offsets";
      layout.template for_each_slice<int64_t>(launch_slice);
    }
  }
}

}  // namespace diglot
