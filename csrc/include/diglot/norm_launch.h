// Host side of the norms of rows. Twin of triton_ops/norm_launch.py.
#pragma once

#include "diglot/norm.cuh"
#include "diglot/row_launch.h"

namespace diglot {

// Rows are the last dimension, whose elements are neighbours: there are no columns.
template <typename T, int kInputs>
struct NormShapes {
  static constexpr int kMost = sizeof(T) == 8 ? 2 : 8 / kInputs;
  using Wide = std::conditional_t<
      sizeof(T) <= 4,
      ShapeList<LaneRows<4>, BlockRows<128, 4>, BlockRows<256, 4>, TiledRows<kMost>,
                WalkedRows<sizeof(T) == 4 ? 1024 : 512, kMost>, TiledRows<kMost>>,
      ShapeList<LaneRows<2>, TiledRows<kMost>>>;
  using Narrow = ShapeList<LaneRows<1, false>, TiledRows<2, false>>;
  static constexpr bool kHasColumns = false;
};

struct NormForwardOperands {
  const Operand& input;
  const Operand* residual;
  const Operand* weight;
  const Operand* bias;
  const Operand* mean;
  const Operand& rstd;
  const Operand* sum;
  const Operand& out;
};

// An array with the dimension of rows' elements, the last: their statistics have none, and no other
// array, where a launcher is told one dimension alone since rows have one element.
inline Operand with_rows(const Operand& operand, const Operand& statistics) {
  Operand result = operand;
  if (operand.rank == statistics.rank) {
    result.sizes[result.rank] = 1;
    result.strides[result.rank++] = 1;
  }
  return result;
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
    operation.weight = parameters(operands.weight);
    operation.bias = parameters(operands.bias);
    operation.eps = eps.template as<Compute>();
    operation.rstd = operands.rstd.as<Compute>();
    if constexpr (kIsCentered) operation.mean = operands.mean->as<Compute>();
    Inputs<T, kInputs> inputs{{operands.input.as<const T>()}};
    const Operand out = with_rows(operands.out, operands.rstd);
    const Operand input = with_rows(operands.input, operands.rstd);
    const Operand statistics = with_rows(operands.rstd, operands.rstd);
    const Dim dim{out.rank - 1};
    operation.n = static_cast<Compute>(out.sizes[dim.number]);
    const auto run = [&](auto shape, const auto& rows, Launch how) {
      return function(shape, rows, how, inputs, operation);
    };
    using Shapes = NormShapes<T, kInputs>;
    if constexpr (kAdds) {
      operation.joined = operands.sum->as<T>();
      inputs.of[1] = operands.residual->as<const T>();
      is_aligned &= reinterpret_cast<uintptr_t>(operation.joined) % kAccessBytes == 0;
      const Operand residual = with_rows(*operands.residual, operands.rstd);
      launch_rows<T, T, kInputs, Shapes>({&out, &input, &residual, &statistics}, dim, run,
                                         is_aligned);
    } else {
      launch_rows<T, T, kInputs, Shapes>({&out, &input, &statistics}, dim, run, is_aligned);
    }
  });
}

}  // namespace diglot
