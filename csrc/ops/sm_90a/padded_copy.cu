// Padded copies of a product's operands: kernels and launches. Twin of
// triton_ops/launch/padded_copy.py.
//
// Architectures: 9.0a
#include "diglot/products/padded_copy.cuh"

#include "diglot/launch/padded_copy.h"

namespace diglot {

// Bits of elements: a copy does not compute.
template <typename T>
__global__ void __launch_bounds__(LinesShape<T>::kThreads)
    product_copy(const T* from, T* to, PaddedCopy copy) {
  copy_lines(from, to, copy);
}

template <typename T>
__global__ void __launch_bounds__(TransposedShape::kThreads)
    product_copy_transposed(const T* from, T* to, PaddedCopy copy) {
  copy_transposed(from, to, copy);
}

namespace {

template <typename T, typename Shape, auto kKernel>
void add_tiles(Planner& planner, const CopiedMatrix& copied, Address<char> to) {
  const auto tiles = [](int64_t size, int side) {
    return static_cast<int>((size + side - 1) / side);
  };
  const TmaMatrix& copy = copied.copy;
  const PaddedCopy given{copy.inner,
                         copy.outer,
                         copied.inner_stride,
                         copied.outer_stride,
                         copy.outer_stride,
                         copy.batch[0],
                         {copied.batch_stride[0], copied.batch_stride[1]},
                         {tiles(copy.outer, Shape::kRows), tiles(copy.inner, Shape::kColumns),
                          copied.matrices(), /*group=*/1}};
  planner.add<kKernel>({static_cast<unsigned>(given.schedule.count()), Shape::kThreads},
                       copied.source.as<const T>(), to.as<T>(), given);
}

template <typename T>
void add_lines(Planner& planner, const CopiedMatrix& copied, Address<char> to) {
  add_tiles<T, LinesShape<T>, product_copy<T>>(planner, copied, to);
}

template <typename T>
void add_copy(Planner& planner, const CopiedMatrix& copied, Address<char> to) {
  const bool is_transposed = copied.outer_stride == 1 && copied.inner_stride != 1;
  if (!is_transposed) return add_lines<T>(planner, copied, to);
  add_tiles<T, TransposedShape, product_copy_transposed<T>>(planner, copied, to);
}

}  // namespace

TmaMatrix plan_padded_copy(Planner& planner, const CopiedMatrix& copied) {
  constexpr int64_t kAlignment = 256;
  const int64_t begin = (planner.plan.scratch.bytes + kAlignment - 1) / kAlignment * kAlignment;
  const Address<char> to = planner.need({begin + copied.bytes()}) + begin;
  switch (size_of(copied.copy.dtype)) {
    case 1: add_copy<uint8_t>(planner, copied, to); break;
    case 2: add_lines<uint16_t>(planner, copied, to); break;  // wgmma reads them along any side
    default: add_copy<uint32_t>(planner, copied, to);
  }
  TmaMatrix copy = copied.copy;
  copy.data = to.as<void>();
  return copy;
}

}  // namespace diglot
