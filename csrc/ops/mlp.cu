// Two linear layers with an activation between them: the launcher of the hidden gradient. linear.cu
// launches the layers, and matmul.cu has the kernels. Twin of triton_ops/mlp.py.
#include "diglot/launch/products.h"
#include "torch/launcher.h"

namespace {

using namespace diglot;

// out = (grad_output weight) times the activation's derivative at `before`.
void mlp_backward(Planner& planner, const Operand& grad_output, const Operand& weight,
                  const Operand& before, std::string_view activation, std::string_view precision,
                  const Operand& out) {
  const Around around{nullptr, &before, nullptr, activation_of(activation), /*is_slope=*/true};
  plan_product(planner, with_precision(Product(grad_output, weight, around, out), precision));
}

DIGLOT_LAUNCHER(mlp_backward,
                "(Tensor grad_output, Tensor weight, Tensor before, str activation, "
                "str precision, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
