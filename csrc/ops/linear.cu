// Linear layers: the launcher. matmul.cu has the kernels. Twin of triton_ops/linear.py.
#include "diglot/launch/products.h"
#include "torch/launcher.h"

namespace {

using namespace diglot;

void linear_forward(Planner& planner, const Operand& input, const Operand& weight,
                    const Operand* bias, bool batch_invariant, std::string_view precision,
                    const Operand& out) {
  Operand transposed = weight;
  std::swap(transposed.sizes[0], transposed.sizes[1]);
  std::swap(transposed.strides[0], transposed.strides[1]);
  Product product(input, transposed, bias, out);
  product.is_batch_invariant = batch_invariant;
  plan_product(planner, with_precision(product, precision));
}

DIGLOT_LAUNCHER(linear_forward,
                "(Tensor input, Tensor weight, Tensor? bias, bool batch_invariant, str precision, "
                "Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
