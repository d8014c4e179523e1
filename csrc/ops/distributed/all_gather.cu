// All ranks' tensors, one behind the other: kernels, launcher, registration. Twin of
// triton_ops/distributed/all_gather.py.
#include "diglot/launch/exchange.h"
#include "torch/launcher.h"

namespace diglot {

template <typename T, int kRanks>
__global__ void __launch_bounds__(kPushThreads, kRanks > 4 ? 1 : 2)
    all_gather_push(SignalSpace* space, int rank, int ranks, int op, int64_t patience,
                    int64_t packets, int64_t slot_bytes, int64_t n, const T* input, bool is_aligned,
                    T* out) {
  push_and_take<kRanks, false>(
      space, {rank, ranks, op, 0, patience}, packets, slot_bytes, 0, n, input,
      Gathering<T>{out, n, n * ranks, ranks, is_aligned, static_cast<T>(-1)});
}

template <typename T, int kRanks, bool kIsStaged>
__global__ void __launch_bounds__(kPullThreads, 2)
    all_gather_pull(SignalSpace* space, int rank, int ranks, int op, int call, int64_t patience,
                    int64_t source, int64_t buffer_bytes, int64_t pitch, int64_t n, const T* input,
                    bool is_aligned, T* out) {
  pull_and_take<kRanks, kIsStaged>(
      space, {rank, ranks, op, static_cast<uint16_t>(call), patience}, source, buffer_bytes, 1, 0,
      n, input, Gathering<T>{out, pitch, pitch * ranks, ranks, is_aligned, static_cast<T>(-1)});
}

}  // namespace diglot

namespace {

using namespace diglot;

constexpr int kOp = 5;  // for reports

// Calls function(Type<T>{}) with an integer T of an element's size. Elements of 8 bytes come as
// two.
template <typename Function>
void dispatch_size(DType dtype, Function function) {
  switch (size_of(dtype)) {
    case 1: return function(Type<uint8_t>{});
    case 2: return function(Type<int16_t>{});
    case 4: return function(Type<int32_t>{});
    default: throw std::invalid_argument("all_gather: elements have 1, 2 or 4 bytes");
  }
}

// Copies all ranks' inputs to `out`, in the order of the ranks. The other arguments are those of
// all_reduce.
void all_gather(Planner& planner, TensorList, const Operand& workspace, const Operand& input,
                std::string_view, std::string_view protocol, int64_t rank, int64_t ranks,
                int64_t packets, int64_t most_pushed, int64_t staging, int64_t most_staged,
                int64_t blocks, Integer call, Integer source, Integer patience,
                const Operand& out) {
  const int64_t n = input.numel;
  if (n == 0) return;
  if (out.numel != n * ranks) {
    throw std::invalid_argument("all_gather: out has the input of every rank");
  }
  const auto space = workspace.as<SignalSpace>();
  dispatch_size(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool is_aligned = out.is_aligned() && n * sizeof(T) % kAccessBytes == 0;
    dispatch_ranks(ranks, [&](auto count) {
      constexpr int kRanks = decltype(count)::value;
      const auto from = input.as<const T>();
      const auto to = out.as<T>();
      plan_exchange<T>(
          planner, protocol, ranks, blocks, {packets, most_pushed, staging, most_staged}, 1, n,
          [&](const Launch& how) {
            planner.add<all_gather_push<T, kRanks>>(how, space, rank, ranks, kOp, patience, packets,
                                                    2 * most_pushed, n, from, is_aligned, to);
          },
          [&](const Launch& how, int64_t first, int64_t part) {
            planner.add<all_gather_pull<T, kRanks, true>>(how, space, rank, ranks, kOp, call,
                                                          patience, staging, most_staged, n, part,
                                                          from + first, is_aligned, to + first);
          },
          [&](const Launch& how) {
            planner.add<all_gather_pull<T, kRanks, false>>(how, space, rank, ranks, kOp, call,
                                                           patience, source, 0, n, n, from,
                                                           is_aligned, to);
          });
    });
  });
}

DIGLOT_LAUNCHER(all_gather,
                "(Tensor(a!)[] workspaces, Tensor(b!) workspace, Tensor input, str group, "
                "str protocol, int rank, int ranks, int packets, int most_pushed, int staging, "
                "int most_staged, int blocks, int call, int source, int patience, Tensor(c!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
