// Layer norm and its derivatives: kernels, launchers, registration. Twin of
// triton_ops/layer_norm.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/norm_backward.h"
#include "diglot/launch/norm_forward.h"
#include "torch/launcher.h"

namespace diglot {

template <typename Shape, typename T, typename W>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    layer_norm_forward_rows(Inputs<T, 1> inputs, T* output, NormForward<T, W, true> operation,
                            Rows<3> rows) {
  reduce_then_map_rows<Shape>(rows, operation, inputs, output);
}

template <typename Shape, typename T>
__global__ void __launch_bounds__(kNormResidentThreads, 1)
    layer_norm_backward_rows(NormRows rows, NormGradients<T> arrays) {
  norm_backward_resident<Shape, T, true>(rows, arrays);
}

template <typename Shape, typename T>
__global__ void __launch_bounds__(kNormResidentThreads, 1)
    layer_norm_backward_strided_rows(NormStridedRows rows, NormGradients<T> arrays) {
  norm_backward_resident<Shape, T, true>(rows, arrays);
}

template <typename Shape, typename T>
__global__ void __launch_bounds__(kNormThreads, 1)
    layer_norm_backward_streaming(NormStridedRows rows, NormGradients<T> arrays) {
  norm_backward_streaming<Shape, T, true>(rows, arrays);
}

template <int kElements, typename Compute>
__global__ void __launch_bounds__(kNormSumThreads)
    layer_norm_backward_sum(int64_t n, int groups, int side, NormSumOrder order,
                            const Compute* sums, NormSumOutputs outputs, DType dtype) {
  norm_group_sums<kElements>(n, groups, side, order, sums, outputs, dtype);
}

}  // namespace diglot

namespace {

using namespace diglot;

void layer_norm_forward(Planner& planner, const Operand& input, const Operand* weight,
                        const Operand* bias, Real eps, const Operand* statistics,
                        const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_norm_forward<true, false, T>(
        planner, {input, nullptr, weight, bias, statistics, nullptr, out}, eps,
        [&](auto type, auto shape, const auto& rows, const Launch& how, const auto& inputs,
            const auto& operation) {
          using W = typename decltype(type)::type;
          return planner.add<layer_norm_forward_rows<decltype(shape), T, W>>(
              how, inputs, out.as<T>(), operation, rows);
        });
  });
}

template <typename T>
struct LayerNormBackward {
  template <typename Shape>
  static constexpr auto rows() {
    if constexpr (Shape::kIsStrided) {
      return &layer_norm_backward_strided_rows<Shape, T>;
    } else {
      return &layer_norm_backward_rows<Shape, T>;
    }
  }
  template <typename Shape>
  static constexpr auto streaming() {
    return &layer_norm_backward_streaming<Shape, T>;
  }
  template <int kElements>
  static constexpr auto sum() {
    return &layer_norm_backward_sum<kElements, compute_t<T>>;
  }
};

void layer_norm_backward(Planner& planner, const Operand& grad_output, const Operand* grad_sum,
                         const Operand& input, const Operand& statistics, const Operand* weight,
                         const Operand* grad_weight, const Operand* grad_bias,
                         const Operand& grad_input) {
  dispatch_floating(grad_input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_norm_backward<true, T, LayerNormBackward<T>>(
        planner,
        {grad_output, grad_sum, input, statistics, weight, grad_weight, grad_bias, grad_input});
  });
}

DIGLOT_LAUNCHER(layer_norm_forward,
                "(Tensor input, Tensor? weight, Tensor? bias, float eps, "
                "Tensor(a!)? statistics, Tensor(b!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(layer_norm_backward,
                "(Tensor grad_output, Tensor? grad_sum, Tensor input, Tensor statistics, "
                "Tensor? weight, Tensor(b!)? grad_weight, "
                "Tensor(c!)? grad_bias, Tensor(d!) grad_input, Tensor(z!)? scratch) -> ()")

}  // namespace
