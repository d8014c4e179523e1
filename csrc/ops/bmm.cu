// Products of batches of matrices: the launcher. matmul.cu has the kernels. Twin of
// triton_ops/bmm.py.
#include "diglot/launch/products.h"
#include "torch/launcher.h"

namespace {

using namespace diglot;

void bmm_forward(Planner& planner, const Operand& input, const Operand& mat2,
                 std::string_view precision, const Operand& out) {
  plan_product(planner, with_precision(Product(input, mat2, {}, out), precision));
}

DIGLOT_LAUNCHER(
    bmm_forward,
    "(Tensor input, Tensor mat2, str precision, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
