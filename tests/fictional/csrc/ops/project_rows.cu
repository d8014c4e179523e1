// Rows times a vector, and each product's share of them all: kernel, launcher, registration. Twin
// of triton_ops/project_rows.py.
#include "diglot/launch/plan.h"
#include "diglot/sync/grid_barrier.cuh"
#include "torch/launcher.h"

namespace diglot {

constexpr int kProjectThreads = 128;

// A thread has a row; all blocks meet, and each sums what all of them found, in order.
__global__ void project_rows_phases(int64_t rows, int64_t n, const float* input,
                                    const float* weight, uint32_t* barrier, float* dots,
                                    float* shares, float* total) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t row = first; row < rows; row += step) {
    float dot = 0;
    for (int64_t column = 0; column < n; ++column) {
      dot += input[row * n + column] * weight[column];
    }
    dots[row] = dot;
  }
  GridBarrier(barrier).sync();
  float sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += dots[row];
  for (int64_t row = first; row < rows; row += step) shares[row] = dots[row] / sum;
  if (first == 0) *total = sum;
}

}  // namespace diglot

namespace {

using namespace diglot;

void project_rows_forward(Planner& planner, const Operand& input, const Operand& weight,
                          const Operand& dots, const Operand& shares, const Operand& total) {
  const auto barrier =
      planner.need({kBarrierBytes, kBarrierBytes, Lifetime::kStream}).as<uint32_t>();
  planner.plan.variant = "a row in a thread";
  planner.add_cooperatively<project_rows_phases>(
      blocks_for(dots.numel, kProjectThreads), 1, kProjectThreads, 0, dots.numel, weight.numel,
      input.as<const float>(), weight.as<const float>(), barrier, dots.as<float>(),
      shares.as<float>(), total.as<float>());
}

DIGLOT_LAUNCHER(project_rows_forward,
                "(Tensor input, Tensor weight, Tensor(a!) dots, Tensor(b!) shares, "
                "Tensor(c!) total, Tensor(z!)? scratch) -> ()")

}  // namespace
