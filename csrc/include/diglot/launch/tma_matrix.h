// A matrix, and a batch of them, as TMA takes it.
#pragma once

#include <cstdint>
#include <optional>

#include "diglot/launch/operand.h"
#include "diglot/launch/products.h"
#include "diglot/mma/tensor_map.h"
#include "diglot/products/tensor_cores.cuh"

namespace diglot {

constexpr int64_t kTmaUnit = 16;  // bytes: of its addresses and strides

// A matrix, and a batch of them, as TMA takes it. "Outer" is the dimension that is not contiguous.
struct TmaMatrix {
  DType dtype;
  Address<void> data;
  int64_t inner, outer, outer_stride;  // elements
  int64_t batch[kTmaBatchRank], batch_stride[kTmaBatchRank];

  TensorDescription described(void* address, uint32_t box_inner, uint32_t box_outer,
                              Swizzle swizzle) const {
    const auto bytes = [&](int64_t stride) {
      return static_cast<uint64_t>(stride * size_of(dtype));
    };
    const auto size = [](int64_t count) { return static_cast<uint64_t>(count); };
    return {size_of(dtype) == 1        ? TensorType::kUint8
            : dtype == DType::kFloat32 ? TensorType::kFloat32
            : dtype == DType::kFloat16 ? TensorType::kFloat16
                                       : TensorType::kBfloat16,
            address,
            {size(inner), size(outer), size(batch[0]), size(batch[1])},
            {bytes(outer_stride), bytes(batch_stride[0]), bytes(batch_stride[1])},
            {box_inner, box_outer, 1, 1},
            {},
            swizzle,
            L2Promotion::k256};
  }

  // Encoded at each launch.
  auto encoded(uint32_t box_inner, uint32_t box_outer, Swizzle swizzle) const {
    return [=, matrix = *this](const Arguments& now) {
      return tensor_map(matrix.described(matrix.data(now), box_inner, box_outer, swizzle));
    };
  }

  TmaBatch steps() const { return {{batch[0] > 1, batch[1] > 1}}; }
};

inline bool is_tma_stride(int64_t stride, int element_bytes) {
  return stride > 0 && stride * element_bytes % kTmaUnit == 0 && stride * element_bytes < 1ll << 40;
}

// Nothing if TMA cannot take it. Array `array` of the batch's layout has the batch's strides.
inline std::optional<TmaMatrix> tma_matrix(const Operand& operand, int64_t inner,
                                           int64_t inner_stride, int64_t outer,
                                           int64_t outer_stride, const ProductBatches& batches,
                                           int array) {
  const int bytes = size_of(operand.dtype);
  if (!operand.is_aligned(kTmaUnit) || batches.rank > kTmaBatchRank) return {};
  if (inner_stride != 1 && inner > 1) return {};
  const int64_t unused = (inner * bytes + kTmaUnit - 1) / kTmaUnit * kTmaUnit / bytes;
  TmaMatrix found{
      operand.dtype, operand.as<void>(), inner, outer, outer == 1 ? unused : outer_stride, {}, {}};
  for (int d = 0; d < kTmaBatchRank; ++d) {
    const bool is_shared = d >= batches.rank || batches.strides[d][array] == 0;
    found.batch[d] = is_shared ? 1 : batches.sizes[d];
    found.batch_stride[d] = is_shared ? found.outer_stride : batches.strides[d][array];
    if (!is_tma_stride(found.batch_stride[d], bytes)) return {};
  }
  return is_tma_stride(found.outer_stride, bytes) ? std::optional(found) : std::nullopt;
}

}  // namespace diglot
