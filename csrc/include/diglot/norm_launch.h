// Host side of the norms of rows. Twin of triton_ops/norm_launch.py.
#pragma once

#include "diglot/norm.cuh"
#include "diglot/row_launch.h"

namespace diglot {

// Rows are the last dimension, whose elements are neighbours: there are no columns. Layer norm's
// threads wait for each other twice, so that more of its blocks are to be there; longer rows'
// weight and bias take so much of the L2 cache's speed that its blocks stay, and keep them. What is
// faster was measured on an H200 (bench/layer_norm.py).
template <typename T, int kInputs, bool kIsCentered>
struct NormShapes {
  static constexpr int kMost = sizeof(T) == 8 ? 2 : 8 / kInputs;
  static constexpr bool kWaits = kIsCentered && kInputs == 1;
  // Of 128 threads, on a multiprocessor.
  static constexpr int kOfLanes = !kWaits ? 1 : sizeof(T) == 2 ? 9 : 8;
  static constexpr int kOfBlock = !kWaits ? 1 : sizeof(T) == 2 ? 10 : 8;
  using InLanes = LaneRows<4, true, kOfLanes>;
  using InBlock = BlockRows<128, 4, kOfBlock>;
  using InLargeBlock = BlockRows<256, 4, (kOfBlock + 1) / 2>;
  using Shared = typename SharedRows<T, kInputs>::Shape;
  using Whole = BlockRows<Shared::kThreads, Shared::kAccesses, Shared::kBlocks>;
  using Many = std::conditional_t<
      kWaits,
      ShapeList<InLanes, InBlock, InLargeBlock, Whole, WalkedRows<512, 8>, TiledRows<kMost>>,
      ShapeList<InLanes, InBlock, InLargeBlock, Shared, TiledRows<kMost>>>;
  using Few = ShapeList<LaneRows<2>, TiledRows<kMost>>;
  using Wide = std::conditional_t<sizeof(T) <= 4, Many, Few>;
  using Narrow = ShapeList<LaneRows<1, false>, TiledRows<2, false>>;
  static constexpr bool kHasColumns = false;
};

struct NormForwardOperands {
  const Operand& input;
  const Operand* residual;
  const Operand* weight;
  const Operand* bias;
  const Operand* statistics;
  const Operand* sum;
  const Operand& out;
};

// A statistic of each row of `rows`, whose elements are the last dimension: contiguous.
inline Operand statistic_of(const Operand& rows, DType dtype) {
  Operand result = rows;
  result.dtype = dtype;
  result.sizes[rows.rank - 1] = 1;
  result.numel = 1;
  for (int d = rows.rank - 1; d >= 0; --d) {
    result.strides[d] = result.numel;
    result.numel *= result.sizes[d];
  }
  return result;
}

// Statistics of so many numbers for each row: one behind the other.
template <typename Compute>
Compute* statistics_in(const Operand& statistics, int64_t rows, int fields) {
  if (size_of(statistics.dtype) != sizeof(Compute) || statistics.numel != fields * rows) {
    throw std::invalid_argument("statistics must have " + std::to_string(fields) +
                                " numbers for each row, of the type that is computed in");
  }
  return statistics.as<Compute>();
}

// Calls function(Type<W>{}) with the type of a weight or a bias of a norm of elements of type T.
template <typename T, typename Function>
void dispatch_parameters(const Operand* weight, const Operand* bias, Function function) {
  const Operand* const parameters = weight != nullptr ? weight : bias;
  if constexpr (sizeof(T) == 2) {
    if (parameters != nullptr && parameters->dtype == DType::kFloat32)
      return function(Type<float>{});
  }
  function(Type<T>{});
}

// Calls function(shape, rows, how, inputs, operation) for a norm of rows, as launch_rows.
template <bool kIsCentered, bool kAdds, typename T, typename Eps, typename Function>
void launch_norm_forward(const NormForwardOperands& operands, Eps eps, Function function) {
  using Compute = compute_t<T>;
  constexpr int kInputs = kAdds ? 2 : 1;
  dispatch_parameters<T>(operands.weight, operands.bias, [&](auto type) {
    using W = typename decltype(type)::type;
    bool is_aligned = true;
    const auto parameters = [&](const Operand* operand) {
      const W* const data = operand == nullptr ? nullptr : operand->as<const W>();
      is_aligned &= reinterpret_cast<uintptr_t>(data) % kAccessBytes == 0;
      return data;
    };
    std::conditional_t<kAdds, AddNormForward<T, W, kIsCentered>, NormForward<T, W, kIsCentered>>
        operation{};
    operation.of = {parameters(operands.weight), parameters(operands.bias)};
    operation.eps = eps.template as<Compute>();
    const Operand& out = operands.out;
    const Operand statistic = statistic_of(out, kDType<Compute>);
    if (operands.statistics != nullptr) {
      Compute* const fields =
          statistics_in<Compute>(*operands.statistics, statistic.numel, kIsCentered ? 2 : 1);
      operation.rstd = kIsCentered ? fields + statistic.numel : fields;
      if constexpr (kIsCentered) operation.mean = fields;
    }
    Inputs<T, kInputs> inputs{{operands.input.as<const T>()}};
    const Dim dim{out.rank - 1};
    operation.n = static_cast<Compute>(out.sizes[dim.number]);
    const auto run = [&](auto shape, auto& rows, Launch how, char*) {
      using Shape = decltype(shape);
      rows.brings = false;
      if constexpr (may_bring<Shape, std::decay_t<decltype(operation)>, T>()) {
        // Blocks that have a row alone read all of weight and bias, which L1 keeps for the next.
        const int arrays = (operation.of.weight != nullptr) + (operation.of.bias != nullptr);
        const std::size_t bytes =
            arrays * sizeof(W) * Shape::kThreads * Shape::kAccesses * Shape::template kElements<T>;
        const std::size_t all = (how.shared_bytes + bytes + kRowOtherBytes) * Shape::kBlocks;
        if (how.cluster_blocks > 1 &&
            all <= static_cast<std::size_t>(multiprocessor_shared_bytes())) {
          rows.brings = true;
          how.shared_bytes += bytes;
        }
      }
      return function(shape, rows, how, inputs, operation);
    };
    using Shapes = NormShapes<T, kInputs, kIsCentered>;
    if constexpr (kAdds) {
      operation.joined = operands.sum->as<T>();
      inputs.of[1] = operands.residual->as<const T>();
      is_aligned &= reinterpret_cast<uintptr_t>(operation.joined) % kAccessBytes == 0;
      launch_rows<T, T, kInputs, Shapes>({&out, &operands.input, operands.residual, &statistic},
                                         dim, run, is_aligned);
    } else {
      launch_rows<T, T, kInputs, Shapes>({&out, &operands.input, &statistic}, dim, run, is_aligned);
    }
  });
}

}  // namespace diglot
