// A product of matrices, and a matrix beside it: the launcher. matmul.cu has the kernels. Twin of
// triton_ops/addmm.py.
#include "diglot/launch/products.h"
#include "torch/launcher.h"

namespace {

using namespace diglot;

void addmm_forward(Planner& planner, const Operand& mat1, const Operand& mat2, const Operand* input,
                   Real beta, Real alpha, bool batch_invariant, std::string_view precision,
                   const Operand& out) {
  Around around;
  around.input = input, around.alpha = alpha, around.beta = beta;
  Product product(mat1, mat2, around, out);
  product.is_batch_invariant = batch_invariant;
  plan_product(planner, with_precision(product, precision));
}

DIGLOT_LAUNCHER(addmm_forward,
                "(Tensor mat1, Tensor mat2, Tensor? input, float beta, float alpha, "
                "bool batch_invariant, str precision, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
