// Products of batches of matrices: the launcher. matmul.cu has the kernels. Twin of
// triton_ops/bmm.py.
#include "diglot/launch/products.h"
#include "torch/launcher.h"

namespace {

using namespace diglot;

void bmm_forward(Planner& planner, const Operand& input, const Operand& mat2, bool batch_invariant,
                 std::string_view precision, const Operand& out) {
  Product product(input, mat2, {}, out);
  product.is_batch_invariant = batch_invariant;
  plan_product(planner, with_precision(product, precision));
}

DIGLOT_LAUNCHER(bmm_forward,
                "(Tensor input, Tensor mat2, bool batch_invariant, str precision, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
