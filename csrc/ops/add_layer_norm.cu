// Layer norm of rows of a sum of two arrays: kernels, launchers, registration. Its derivative is
// that of layer_norm.cu. Twin of triton_ops/add_layer_norm.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/norm_forward.h"
#include "torch/launcher.h"

namespace diglot {

template <typename Shape, typename T, typename W>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    add_layer_norm_forward_rows(Inputs<T, 2> inputs, T* output,
                                AddNormForward<T, W, true> operation, Rows<4> rows) {
  reduce_then_map_rows<Shape>(rows, operation, inputs, output);
}

}  // namespace diglot

namespace {

using namespace diglot;

void add_layer_norm_forward(Planner& planner, const Operand& input, const Operand& residual,
                            const Operand* weight, const Operand* bias, Real eps,
                            const Operand* statistics, const Operand& sum, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_norm_forward<true, true, T>(
        planner, {input, &residual, weight, bias, statistics, &sum, out}, eps,
        [&](auto type, auto shape, const auto& rows, const Launch& how, const auto& inputs,
            const auto& operation) {
          using W = typename decltype(type)::type;
          return planner.add<add_layer_norm_forward_rows<decltype(shape), T, W>>(
              how, inputs, out.as<T>(), operation, rows);
        });
  });
}

DIGLOT_LAUNCHER(
    add_layer_norm_forward,
    "(Tensor input, Tensor residual, Tensor? weight, Tensor? bias, float eps, "
    "Tensor(a!)? statistics, Tensor(c!) sum, Tensor(d!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
