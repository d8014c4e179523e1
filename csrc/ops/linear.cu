// Linear layers: the launchers, and the kernel of the activations' derivatives. matmul.cu has the
// kernels of products. Twin of triton_ops/linear.py.
#include <string>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/elementwise.h"
#include "diglot/launch/kept_text.h"
#include "diglot/launch/products.h"
#include "diglot/launch/sum.h"
#include "torch/launcher.h"

namespace diglot {

// grad_output times an activation's derivative, where `before` went into the activation.
template <typename T>
struct ActivationBackward {
  Activation activation;

  DIGLOT_DEVICE T operator()(T grad_output, T before) const {
    T result = grad_output;
    with_activation(activation, [&](auto constant) {
      result = convert<T>(activation_gradient<decltype(constant)::value, T>(
          convert<compute_t<T>>(grad_output), convert<compute_t<T>>(before)));
    });
    return result;
  }
};

}  // namespace diglot

namespace {

using namespace diglot;

Operand transposed(Operand matrix) {
  std::swap(matrix.sizes[0], matrix.sizes[1]);
  std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}

void linear_forward(Planner& planner, const Operand& input, const Operand& weight,
                    const Operand* bias, const Operand* residual, std::string_view activation,
                    bool batch_invariant, std::string_view precision, const Operand* before,
                    const Operand& out) {
  const Around around{bias, residual, before, activation_of(activation)};
  const Operand other = transposed(weight);
  Product product(input, other, around, out);
  product.is_batch_invariant = batch_invariant;
  plan_product(planner, with_precision(product, precision));
}

void linear_backward(Planner& planner, const Operand& grad_output, const Operand& before,
                     std::string_view activation, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    map_elements<T>(planner, ActivationBackward<T>{activation_of(activation)}, out, grad_output,
                    before);
  });
}

// grad_output has a row for each feature: it is transposed.
void linear_parameters_backward(Planner& planner, const Operand& grad_output, const Operand& input,
                                bool batch_invariant, std::string_view precision,
                                const Operand& grad_weight, const Operand& grad_bias) {
  Product product(grad_output, input, {}, grad_weight);
  product.is_batch_invariant = batch_invariant;
  product.sums_of_rows = &grad_bias;
  product = with_precision(product, precision);
  const TensorCorePlanner with_row_sums = row_sums_planner();
  if (!product.is_empty() && with_row_sums != nullptr && with_row_sums(planner, product)) return;
  plan_product(planner, product);
  if (grad_bias.numel == 0) return;
  const std::string name = planner.plan.variant;
  plan_sum(planner, transposed(grad_output), grad_bias);
  planner.plan.variant = kept_text(name + "; " + planner.plan.variant);
}

DIGLOT_LAUNCHER(linear_forward,
                "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str activation, "
                "bool batch_invariant, str precision, Tensor(a!)? before, Tensor(b!) out, "
                "Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(linear_parameters_backward,
                "(Tensor grad_output, Tensor input, bool batch_invariant, str precision, "
                "Tensor(a!) grad_weight, Tensor(b!) grad_bias, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(linear_backward,
                "(Tensor grad_output, Tensor before, str activation, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
