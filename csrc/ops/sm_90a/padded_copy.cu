// Padded copies of a product's operands: kernels and launches. Twin of
// triton_ops/launch/padded_copy.py.
//
// Architectures: 9.0a
#include "diglot/products/padded_copy.cuh"

#include "diglot/launch/padded_copy.h"

namespace diglot {

// Copies A, B or both: the first blocks have the tiles of A. Bits of elements: a copy does not
// compute.
template <typename T>
__global__ void __launch_bounds__(kCopyThreads)
    product_copy(const T* from_a, T* to_a, const __grid_constant__ PaddedCopy a, const T* from_b,
                 T* to_b, const __grid_constant__ PaddedCopy b) {
  const int64_t block = blockIdx.x, of_a = a.schedule.count();
  const bool is_a = block < of_a;
  copy_tile(is_a ? from_a : from_b, is_a ? to_a : to_b, is_a ? a : b, is_a ? block : block - of_a);
}

namespace {

template <typename T>
PaddedCopy padded_copy(const CopiedMatrix& copied) {
  const TmaMatrix& copy = copied.copy;
  const bool is_transposed = sizeof(T) != 2 && copied.outer_stride == 1 && copied.inner_stride != 1;
  const int rows = is_transposed ? TransposedShape<T>::kRows : LinesShape<T>::kRows;
  const int columns = is_transposed ? TransposedShape<T>::kColumns : LinesShape<T>::kColumns;
  const auto tiles = [](int64_t size, int side) {
    return static_cast<int>((size + side - 1) / side);
  };
  return {copy.inner,
          copy.outer,
          copied.inner_stride,
          copied.outer_stride,
          copy.outer_stride,
          copy.batch[0],
          {copied.batch_stride[0], copied.batch_stride[1]},
          is_transposed,
          {tiles(copy.outer, rows), tiles(copy.inner, columns), copied.matrices(), /*group=*/1}};
}

// A copy's arguments. An operand that stays where it is has no tiles.
template <typename T>
struct Copied {
  Address<const T> from;
  Address<T> to;
  PaddedCopy copy{};

  Copied(Planner& planner, WgmmaOperand& operand) {
    if (!operand.copied) return;
    constexpr int64_t kAlignment = 256;
    const CopiedMatrix& copied = *operand.copied;
    const int64_t end = planner.plan.scratch.bytes;
    const int64_t begin = (end + kAlignment - 1) / kAlignment * kAlignment;
    from = copied.source.as<const T>();
    to = (planner.need({begin + copied.bytes()}) + begin).template as<T>();
    copy = padded_copy<T>(copied);
    operand.matrix.data = to.template as<void>();
  }
};

template <typename T>
void add_copies(Planner& planner, WgmmaOperand& a, WgmmaOperand& b) {
  const Copied<T> of_a(planner, a), of_b(planner, b);
  const int64_t blocks = of_a.copy.schedule.count() + of_b.copy.schedule.count();
  planner.add<product_copy<T>>({static_cast<unsigned>(blocks), kCopyThreads}, of_a.from, of_a.to,
                               of_a.copy, of_b.from, of_b.to, of_b.copy);
}

}  // namespace

void plan_copies(Planner& planner, WgmmaOperand& a, WgmmaOperand& b) {
  switch (size_of(a.matrix.dtype)) {
    case 1: return add_copies<uint8_t>(planner, a, b);
    case 2: return add_copies<uint16_t>(planner, a, b);
    default: return add_copies<uint32_t>(planner, a, b);
  }
}

}  // namespace diglot
