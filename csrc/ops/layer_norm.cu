// Layer norm and its derivatives: kernels, launchers, registration. Twin of
// triton_ops/layer_norm.py.
#include "diglot/dispatch.h"
#include "diglot/norm_backward_launch.h"
#include "torch/launcher.h"

namespace diglot {

template <typename Shape, typename T>
__global__ void __launch_bounds__(kNormThreads)
    layer_norm_backward_rows(NormRows rows, NormGradients<T> arrays) {
  norm_backward<Shape, T, true>(rows, arrays);
}

template <typename T>
__global__ void __launch_bounds__(kNormThreads)
    layer_norm_backward_again(NormRows rows, NormGradients<T> arrays) {
  norm_backward_again<kNormThreads, T, true>(rows, arrays);
}

template <int kElements, typename Compute>
__global__ void __launch_bounds__(kNormSumThreads)
    layer_norm_backward_sum(int64_t n, int groups, int side, const Compute* sums,
                            NormSumOutputs outputs, DType dtype) {
  norm_backward_sum<kElements>(n, groups, side, sums, outputs, dtype);
}

}  // namespace diglot

namespace {

using namespace diglot;

template <typename T>
struct LayerNormBackward {
  template <typename Shape>
  static constexpr auto rows() {
    return &layer_norm_backward_rows<Shape, T>;
  }
  static constexpr auto again() { return &layer_norm_backward_again<T>; }
  template <int kElements>
  static constexpr auto sum() {
    return &layer_norm_backward_sum<kElements, compute_t<T>>;
  }
};

void layer_norm_backward(Stream stream, const Operand& grad_output, const Operand* grad_sum,
                         const Operand& input, const Operand& mean, const Operand& rstd,
                         const Operand* weight, const Operand* workspace,
                         const Operand* grad_weight, const Operand* grad_bias,
                         const Operand& grad_input) {
  dispatch_floating(grad_input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_norm_backward<T, LayerNormBackward<T>>(
        stream, {grad_output, grad_sum, input, &mean, rstd, weight, workspace, grad_weight,
                 grad_bias, grad_input});
  });
}

DIGLOT_LAUNCHER(layer_norm_backward,
                "(Tensor grad_output, Tensor? grad_sum, Tensor input, Tensor mean, Tensor rstd, "
                "Tensor? weight, Tensor(a!)? workspace, Tensor(b!)? grad_weight, "
                "Tensor(c!)? grad_bias, Tensor(d!) grad_input) -> ()")

}  // namespace
