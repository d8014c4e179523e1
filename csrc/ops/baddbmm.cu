// Products of batches of matrices, and matrices beside them: the launcher. matmul.cu has the
// kernels. Twin of triton_ops/baddbmm.py.
#include "diglot/launch/products.h"
#include "torch/launcher.h"

namespace {

using namespace diglot;

void baddbmm_forward(Planner& planner, const Operand& batch1, const Operand& batch2,
                     const Operand* input, Real beta, Real alpha, bool batch_invariant,
                     std::string_view precision, const Operand& out) {
  Around around;
  around.input = input, around.alpha = alpha, around.beta = beta;
  Product product(batch1, batch2, around, out);
  product.is_batch_invariant = batch_invariant;
  plan_product(planner, with_precision(product, precision));
}

DIGLOT_LAUNCHER(baddbmm_forward,
                "(Tensor batch1, Tensor batch2, Tensor? input, float beta, float alpha, "
                "bool batch_invariant, str precision, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
