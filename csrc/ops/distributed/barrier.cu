// A barrier across the ranks of a group: kernel, launcher, registration. Twin of
// triton_ops/distributed/barrier.py.
#include "diglot/launch/plan.h"
#include "diglot/sync/signal.cuh"
#include "torch/launcher.h"

namespace diglot {

__global__ void __launch_bounds__(32)
    meet_ranks(SignalSpace* space, int rank, int ranks, int op, int call, int64_t patience) {
  Signals signals(space, {rank, ranks, op, static_cast<uint16_t>(call), patience});
  signals.meet(kOpening);
}

}  // namespace diglot

namespace {

using namespace diglot;

constexpr int kBarrierOp = 4, kBarrierCall = 1;  // for reports; unlike any number of an all_reduce

void barrier(Planner& planner, TensorList, std::string_view, int64_t rank, int64_t ranks,
             Integer patience, const Operand& workspace) {
  planner.add<meet_ranks>({1, 32}, workspace.as<SignalSpace>(), rank, ranks, kBarrierOp,
                          kBarrierCall, patience);
  planner.plan.variant = "signals";
}

DIGLOT_LAUNCHER(barrier,
                "(Tensor(a!)[] workspaces, str group, int rank, int ranks, int patience, "
                "Tensor(b!) workspace, Tensor(z!)? scratch) -> ()")

}  // namespace
