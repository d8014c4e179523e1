// The reduction of a tensor over all ranks of a group; each rank gets its part: kernels,
// launcher, registration. Twin of triton_ops/distributed/reduce_scatter.py.
#include "diglot/launch/exchange.h"
#include "torch/launcher.h"

namespace diglot {

template <typename T, typename Op, int kRanks>
__global__ void __launch_bounds__(kPushThreads, kRanks > 4 ? 1 : 2)
    reduce_scatter_push(SignalSpace* space, int rank, int ranks, int op, int64_t patience,
                        int64_t packets, int64_t slot_bytes, int64_t n, const T* input,
                        float divisor, T* out) {
  push_and_take<kRanks, true>(space, {rank, ranks, op, 0, patience}, packets, slot_bytes, n, n,
                              input, Reduction<T, Op>{{out}, ranks, divisor});
}

template <typename T, typename Op, int kRanks, bool kIsStaged>
__global__ void __launch_bounds__(kPullThreads, 2)
    reduce_scatter_pull(SignalSpace* space, int rank, int ranks, int op, int call, int64_t patience,
                        int64_t source, int64_t buffer_bytes, int64_t pitch, int64_t n,
                        const T* input, float divisor, T* out) {
  pull_and_take<kRanks, kIsStaged>(space, {rank, ranks, op, static_cast<uint16_t>(call), patience},
                                   source, buffer_bytes, ranks, pitch, n, input,
                                   Reduction<T, Op>{{out}, ranks, divisor});
}

}  // namespace diglot

namespace {

using namespace diglot;

constexpr int kFirstOp = 6;  // for reports: the number of the reduction follows

// Reduces `input` over the ranks of a workspace. `out` gets part `rank` of as many parts as ranks.
// The other arguments are those of all_reduce.
void reduce_scatter(Planner& planner, TensorList, const Operand& workspace, const Operand& input,
                    std::string_view, std::string_view op, std::string_view protocol, int64_t rank,
                    int64_t ranks, int64_t packets, int64_t most_pushed, int64_t staging,
                    int64_t most_staged, int64_t blocks, Integer call, Integer source,
                    Integer patience, const Operand& out) {
  const int64_t n = out.numel;
  if (n == 0) return;
  if (input.numel != n * ranks) {
    throw std::invalid_argument("reduce_scatter: input has as many parts of out as ranks");
  }
  const auto space = workspace.as<SignalSpace>();
  const float divisor = op == "avg" ? static_cast<float>(ranks) : 1.f;
  dispatch_reduced(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    dispatch_op(op, [&](auto operation, int reduction) {
      using Op = decltype(operation);
      const int number = kFirstOp + reduction;
      dispatch_ranks(ranks, [&](auto count) {
        constexpr int kRanks = decltype(count)::value;
        const auto from = input.as<const T>();
        const auto to = out.as<T>();
        plan_exchange<T>(
            planner, protocol, ranks, blocks, {packets, most_pushed, staging, most_staged}, ranks,
            n,
            [&](const Launch& how) {
              planner.add<reduce_scatter_push<T, Op, kRanks>>(how, space, rank, ranks, number,
                                                              patience, packets, 2 * most_pushed, n,
                                                              from, divisor, to);
            },
            [&](const Launch& how, int64_t first, int64_t part) {
              planner.add<reduce_scatter_pull<T, Op, kRanks, true>>(
                  how, space, rank, ranks, number, call, patience, staging, most_staged, n, part,
                  from + first, divisor, to + first);
            },
            [&](const Launch& how) {
              planner.add<reduce_scatter_pull<T, Op, kRanks, false>>(how, space, rank, ranks,
                                                                     number, call, patience, source,
                                                                     0, n, n, from, divisor, to);
            });
      });
    });
  });
}

DIGLOT_LAUNCHER(reduce_scatter,
                "(Tensor(a!)[] workspaces, Tensor(b!) workspace, Tensor input, str group, str op, "
                "str protocol, int rank, int ranks, int packets, int most_pushed, int staging, "
                "int most_staged, int blocks, int call, int source, int patience, Tensor(c!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
