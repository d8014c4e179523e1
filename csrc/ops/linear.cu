// Linear layers: the launchers, and the kernel of the activations' derivatives. matmul.cu has the
// kernels of products. Twin of triton_ops/linear.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/elementwise.h"
#include "diglot/launch/products.h"
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

void linear_forward(Planner& planner, const Operand& input, const Operand& weight,
                    const Operand* bias, const Operand* residual, std::string_view activation,
                    bool batch_invariant, std::string_view precision, const Operand* before,
                    const Operand& out) {
  Operand transposed = weight;
  std::swap(transposed.sizes[0], transposed.sizes[1]);
  std::swap(transposed.strides[0], transposed.strides[1]);
  const Around around{bias, residual, before, activation_of(activation)};
  Product product(input, transposed, around, out);
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

DIGLOT_LAUNCHER(linear_forward,
                "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str activation, "
                "bool batch_invariant, str precision, Tensor(a!)? before, Tensor(b!) out, "
                "Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(linear_backward,
                "(Tensor grad_output, Tensor before, str activation, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
