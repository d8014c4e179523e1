// RMS norm of rows of a sum of two arrays: kernels, launchers, registration. Its derivative is that
// of rms_norm.cu. Twin of triton_ops/add_rms_norm.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/norm_forward.h"
#include "torch/launcher.h"

namespace diglot {

template <typename Shape, typename T, typename W>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    add_rms_norm_forward_rows(Inputs<T, 2> inputs, T* output, AddNormForward<T, W, false> operation,
                              Rows<4> rows) {
  reduce_then_map_rows<Shape>(rows, operation, inputs, output);
}

}  // namespace diglot

namespace {

using namespace diglot;

void add_rms_norm_forward(Planner& planner, const Operand& input, const Operand& residual,
                          const Operand* weight, Real eps, const Operand* statistics,
                          const Operand& sum, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_norm_forward<false, true, T>(
        planner, {input, &residual, weight, nullptr, statistics, &sum, out}, eps,
        [&](auto type, auto shape, const auto& rows, const Launch& how, const auto& inputs,
            const auto& operation) {
          using W = typename decltype(type)::type;
          return planner.add<add_rms_norm_forward_rows<decltype(shape), T, W>>(
              how, inputs, out.as<T>(), operation, rows);
        });
  });
}

DIGLOT_LAUNCHER(
    add_rms_norm_forward,
    "(Tensor input, Tensor residual, Tensor? weight, float eps, "
    "Tensor(a!)? statistics, Tensor(b!) sum, Tensor(c!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
