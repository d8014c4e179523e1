// The sum, or the maximum or minimum, of a tensor over all ranks of a group: kernels, launcher,
// registration. Twin of triton_ops/distributed/all_reduce.py. docs/collectives.md has its
// protocols.
#include "diglot/launch/exchange.h"
#include "torch/launcher.h"

namespace diglot {

template <typename T, typename Op, int kRanks>
__global__ void __launch_bounds__(kPushThreads, kRanks > 4 ? 1 : 2)
    all_reduce_push(SignalSpace* space, int rank, int ranks, int op, int64_t patience,
                    int64_t packets, int64_t slot_bytes, int64_t n, const T* input, float divisor,
                    T* out) {
  push_and_take<kRanks, false>(space, {rank, ranks, op, 0, patience}, packets, slot_bytes, 0, n,
                               input, Reduction<T, Op>{{out}, ranks, divisor});
}

template <typename T, typename Op, int kRanks, bool kIsStaged>
__global__ void __launch_bounds__(kPullThreads, 2)
    all_reduce_pull(SignalSpace* space, int rank, int ranks, int op, int call, int64_t patience,
                    int64_t source, int64_t buffer_bytes, int64_t n, const T* input, float divisor,
                    T* out) {
  pull_and_take<kRanks, kIsStaged>(space, {rank, ranks, op, static_cast<uint16_t>(call), patience},
                                   source, buffer_bytes, 1, 0, n, input,
                                   Reduction<T, Op>{{out}, ranks, divisor});
}

// `first`: of the tensors' elements that the launch reduces.
template <typename T, typename Op, int kRanks, Shots kShots>
__global__ void __launch_bounds__(kPullThreads, 2)
    all_reduce_two_shots(SignalSpace* space, int rank, int ranks, int op, int call,
                         int64_t patience, int64_t source, int64_t staging, int64_t buffer_bytes,
                         int64_t first, int64_t n, const T* input, float divisor, T* out) {
  reduce_in_two_shots<kRanks, kShots, T, Op>(
      space, {rank, ranks, op, static_cast<uint16_t>(call), patience}, source + first * sizeof(T),
      staging, buffer_bytes, n, input + first, divisor, out + first);
}

}  // namespace diglot

namespace {

using namespace diglot;

// Reduces `input` over the ranks of a workspace into `out`, which begins at a multiple of 16 bytes.
// It may be `input`, unless `protocol` is "in place". `workspaces` holds what kernels reach through
// addresses: all ranks' workspaces and the report.
//
// `protocol` is "push", "pull" (staged), "in place" (all ranks' inputs lie at the same place of
// their workspaces), "two shots" (staged), "two shots in place" or "direct shots". For the last one
// all ranks' outputs, too, lie at the same place.
//
// In a workspace, push's slots begin at byte `packets` and hold `most_pushed` bytes of data each.
// The two buffers of a staged pull begin at `staging` and have `most_staged` bytes each. Two shots
// keep what they reduce there. Longer inputs take several launches. `blocks`: at most; 0: one per
// SM. `call` is a number of 16 bits, equal for calls that fit each other. `source` is where an
// input "in place" lies.
void all_reduce(Planner& planner, TensorList, const Operand& workspace, const Operand& input,
                std::string_view, std::string_view op, std::string_view protocol, int64_t rank,
                int64_t ranks, int64_t packets, int64_t most_pushed, int64_t staging,
                int64_t most_staged, int64_t blocks, Integer call, Integer source, Integer patience,
                const Operand& out) {
  const int64_t n = input.numel;
  if (n == 0) return;
  if (!out.is_aligned(kAccessBytes)) {
    throw std::invalid_argument("distributed: out begins at a multiple of 16 bytes");
  }
  const auto space = workspace.as<SignalSpace>();
  const float divisor = op == "avg" ? static_cast<float>(ranks) : 1.f;
  dispatch_reduced(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    dispatch_op(op, [&](auto operation, int number) {
      using Op = decltype(operation);
      dispatch_ranks(ranks, [&](auto count) {
        constexpr int kRanks = decltype(count)::value;
        const auto from = input.as<const T>();
        const auto to = out.as<T>();
        const Rooms rooms{packets, most_pushed, staging, most_staged};
        if (Protocol(protocol).is_two_shots) {
          return plan_two_shots<T>(
              planner, protocol, ranks, blocks, rooms, n,
              [&](auto shots, const Launch& how, int64_t first, int64_t part) {
                planner.add<all_reduce_two_shots<T, Op, kRanks, decltype(shots)::value>>(
                    how, space, rank, ranks, number, call, patience, source, staging, most_staged,
                    first, part, from, divisor, to);
              });
        }
        plan_exchange<T>(
            planner, protocol, ranks, blocks, rooms, 1, n,
            [&](const Launch& how) {
              planner.add<all_reduce_push<T, Op, kRanks>>(how, space, rank, ranks, number, patience,
                                                          packets, 2 * most_pushed, n, from,
                                                          divisor, to);
            },
            [&](const Launch& how, int64_t first, int64_t part) {
              planner.add<all_reduce_pull<T, Op, kRanks, true>>(
                  how, space, rank, ranks, number, call, patience, staging, most_staged, part,
                  from + first, divisor, to + first);
            },
            [&](const Launch& how) {
              planner.add<all_reduce_pull<T, Op, kRanks, false>>(
                  how, space, rank, ranks, number, call, patience, source, 0, n, from, divisor, to);
            });
      });
    });
  });
}

DIGLOT_LAUNCHER(all_reduce,
                "(Tensor(a!)[] workspaces, Tensor(b!) workspace, Tensor input, str group, str op, "
                "str protocol, int rank, int ranks, int packets, int most_pushed, int staging, "
                "int most_staged, int blocks, int call, int source, int patience, Tensor(c!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
