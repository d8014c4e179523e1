// The sum, or the maximum or minimum, of a tensor over all ranks of a group: kernels, launcher,
// registration. Twin of triton_ops/distributed/all_reduce.py. docs/collectives.md has its
// protocols.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/plan.h"
#include "diglot/sync/signal.cuh"
#include "diglot/vector_access.cuh"
#include "torch/launcher.h"

namespace diglot {

// Two blocks fit on an SM, so that all blocks of two groups run at once.
constexpr int kPushThreads = 512, kPullThreads = 256;
constexpr int kPulledBytes = 128;  // that a thread has in flight

struct Sum {
  static DIGLOT_DEVICE float apply(float a, float b) { return a + b; }
};
// NaN goes on, as in torch.maximum.
struct Maximum {
  static DIGLOT_DEVICE float apply(float a, float b) { return a > b || a != a ? a : b; }
};
struct Minimum {
  static DIGLOT_DEVICE float apply(float a, float b) { return a < b || a != a ? a : b; }
};

DIGLOT_DEVICE float quiet_nan() { return __int_as_float(0x7fc00000); }

// The 8 bytes of an array that begin at element `first`; zeros behind its end.
template <typename T>
DIGLOT_DEVICE uint2 load_pair(const T* array, int64_t first, int64_t n, bool is_aligned) {
  constexpr int kElements = sizeof(uint2) / sizeof(T);
  if (is_aligned && first + kElements <= n) {
    return *reinterpret_cast<const uint2*>(array + first);
  }
  Vector<T, kElements> values;
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) {
    values[i] = first + i < n ? array[first + i] : convert<T>(0.f);
  }
  uint2 bits;
  memcpy(&bits, &values, sizeof(bits));
  return bits;
}

// One step of a reduction in the order of ranks. Every rank takes the same steps, so that all have
// the same bits.
template <typename Op, typename T, int kElements>
DIGLOT_DEVICE void accumulate(float (&sums)[kElements], const Vector<T, kElements>& values,
                              bool is_first) {
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) {
    const float value = convert<float>(values[i]);
    sums[i] = is_first ? value : Op::apply(sums[i], value);
  }
}

template <typename T, int kElements>
DIGLOT_DEVICE void store_results(T* out, int64_t first, int64_t n, const float (&sums)[kElements],
                                 float divisor) {
  Vector<T, kElements> results;
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) {
    results[i] = convert<T>(divisor == 1 ? sums[i] : sums[i] / divisor);
  }
  if (first + kElements <= n) {
    store_vector(out + first, results);
  } else {
    for (int i = 0; i < kElements; ++i) {
      if (first + i < n) out[first + i] = results[i];
    }
  }
}

// Push: each rank writes its data to all peers as packets, and reduces what arrives. Slots lie
// `packets` bytes into a workspace, one for each parity and sender. A slot is written again two
// launches later. By then its reader has ended the launch between, in which it sent packets that
// the writer has read.
template <typename T, typename Op, int kRanks>
__global__ void __launch_bounds__(kPushThreads, kRanks > 4 ? 1 : 2)
    all_reduce_push(SignalSpace* space, int rank, int ranks, int op, int64_t patience,
                    int64_t packets, int64_t slot_bytes, int64_t n, const T* input, float divisor,
                    T* out) {
  constexpr int kElements = sizeof(uint2) / sizeof(T);
  const bool is_aligned = reinterpret_cast<uintptr_t>(input) % sizeof(uint2) == 0;
  const int64_t pairs = (n + kElements - 1) / kElements;
  const int64_t begin = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  // These loads are in flight while the epoch is.
  char* peers[kRanks];
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    peers[r] = reinterpret_cast<char*>(space->addresses[r < ranks ? r : rank]) + packets;
  }
  uint2 pushed = load_pair(input, begin * kElements, n, is_aligned);
  Signals signals(space, {rank, ranks, op, 0, patience});
  const uint32_t flag = signals.flag();
  const auto slot = [&](char* slots, int sender) {
    const int64_t number = int64_t{signals.parity()} * ranks + sender;
    return reinterpret_cast<Packets*>(slots + number * slot_bytes);
  };
  for (int64_t i = begin; i < pairs; i += step) {
    DIGLOT_UNROLL
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer >= ranks || peer == rank) continue;
      store_packets(slot(peers[peer], rank) + i, Packets::make(pushed, flag));
    }
    pushed = load_pair(input, (i + step) * kElements, n, is_aligned);
  }
  char* const own = reinterpret_cast<char*>(space) + packets;
  for (int64_t i = begin; i < pairs; i += step) {
    uint2 data[kRanks];
    data[0] = load_pair(input, i * kElements, n, is_aligned);
    DIGLOT_UNROLL
    for (int sender = 1; sender < kRanks; ++sender) data[sender] = data[0];
    int missing = -1;
    Deadline deadline(signals.patience());
    do {
      missing = -1;
      DIGLOT_UNROLL
      for (int sender = 0; sender < kRanks; ++sender) {
        if (sender >= ranks || sender == rank) continue;
        const Packets seen = load_packets(slot(own, sender) + i);
        if (!seen.have(flag)) missing = sender;
        data[sender] = seen.data();
      }
    } while (missing >= 0 && !deadline.is_over());
    float sums[kElements];
    DIGLOT_UNROLL
    for (int sender = 0; sender < kRanks; ++sender) {
      if (sender >= ranks) continue;
      Vector<T, kElements> values;
      memcpy(&values, &data[sender], sizeof(values));
      accumulate<Op>(sums, values, sender == 0);
    }
    if (missing >= 0) {
      signals.give_up(missing);
      DIGLOT_UNROLL
      for (float& sum : sums) sum = quiet_nan();
    }
    store_results(out, i * kElements, n, sums, divisor);
  }
}

// Pull: each rank reads all ranks' data and reduces them. With kIsStaged, a block first copies its
// share to the rank's own workspace, `source` bytes behind its begin, into one of two buffers of
// `buffer_bytes`. Otherwise all ranks' inputs lie at `source` in the workspaces. Then a closing
// meeting keeps each rank from changing its input while others still read it.
template <typename T, typename Op, int kRanks, bool kIsStaged>
__global__ void __launch_bounds__(kPullThreads, 2)
    all_reduce_pull(SignalSpace* space, int rank, int ranks, int op, int call, int64_t patience,
                    int64_t source, int64_t buffer_bytes, int64_t n, const T* input, float divisor,
                    T* out) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  constexpr int kLoads = kPulledBytes / kAccessBytes / kRanks;
  char* owners[kRanks];
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    owners[r] = reinterpret_cast<char*>(space->addresses[r < ranks ? r : rank]);
  }
  Signals signals(space, {rank, ranks, op, static_cast<uint16_t>(call), patience});
  if (kIsStaged) source += signals.parity() * buffer_bytes;
  T* sources[kRanks];
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) sources[r] = reinterpret_cast<T*>(owners[r] + source);
  // A block takes tiles of neighbouring vectors, the same when it stages and when it reduces.
  constexpr int64_t kTile = int64_t{kLoads} * kPullThreads;
  const int64_t vectors = n / kElements;
  const int64_t begin = blockIdx.x * kTile + threadIdx.x, step = gridDim.x * kTile;
  const bool has_rest = vectors / kTile % gridDim.x == blockIdx.x;  // less than a vector
  if (kIsStaged) {
    auto* const staging = reinterpret_cast<char*>(space) + source;
    if (reinterpret_cast<uintptr_t>(input) % kAccessBytes == 0) {
      for (int64_t first = begin; first < vectors; first += step) {
        // Loads past the end load the last one again: unconditional loads are in flight at once.
        uint4 bits[kLoads];
        DIGLOT_UNROLL
        for (int l = 0; l < kLoads; ++l) {
          const int64_t i = first + l * kPullThreads;
          bits[l] = reinterpret_cast<const uint4*>(input)[i < vectors ? i : vectors - 1];
        }
        DIGLOT_UNROLL
        for (int l = 0; l < kLoads; ++l) {
          const int64_t i = first + l * kPullThreads;
          if (i < vectors) reinterpret_cast<uint4*>(staging)[i] = bits[l];
        }
      }
    } else {
      for (int64_t first = begin; first < vectors; first += step) {
        for (int64_t i = first; i < first + kTile && i < vectors; i += kPullThreads) {
          for (int e = 0; e < kElements; ++e) {
            reinterpret_cast<T*>(staging)[i * kElements + e] = input[i * kElements + e];
          }
        }
      }
    }
    if (has_rest) {
      for (int64_t e = vectors * kElements + threadIdx.x; e < n; e += kPullThreads) {
        reinterpret_cast<T*>(staging)[e] = input[e];
      }
    }
  }
  const bool have_met = signals.meet(kOpening);
  for (int64_t first = begin; first < vectors; first += step) {
    uint4 bits[kLoads][kRanks];
    DIGLOT_UNROLL
    for (int l = 0; l < kLoads; ++l) {
      const int64_t i = first + l * kPullThreads;
      DIGLOT_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        bits[l][r] = reinterpret_cast<const uint4*>(sources[r])[i < vectors ? i : vectors - 1];
      }
    }
    DIGLOT_UNROLL
    for (int l = 0; l < kLoads; ++l) {
      const int64_t i = first + l * kPullThreads;
      if (i >= vectors) continue;
      float sums[kElements];
      DIGLOT_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        if (r >= ranks) continue;
        Vector<T> values;
        memcpy(&values, &bits[l][r], sizeof(values));
        accumulate<Op>(sums, values, r == 0);
      }
      if (!have_met) {
        DIGLOT_UNROLL
        for (float& sum : sums) sum = quiet_nan();
      }
      store_results(out, i * kElements, n, sums, divisor);
    }
  }
  if (has_rest) {
    for (int64_t e = vectors * kElements + threadIdx.x; e < n; e += kPullThreads) {
      float sum[1];
      DIGLOT_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        if (r < ranks) accumulate<Op>(sum, Vector<T, 1>{sources[r][e]}, r == 0);
      }
      if (!have_met) sum[0] = quiet_nan();
      store_results(out, e, n, sum, divisor);
    }
  }
  if (!kIsStaged) signals.meet(kClosing);
}

}  // namespace diglot

namespace {

using namespace diglot;

// Calls function(Op{}, number) with the operation, and its number in reports.
template <typename Function>
void dispatch_op(std::string_view op, Function function) {
  if (op == "sum") return function(Sum{}, 0);
  if (op == "avg") return function(Sum{}, 1);
  if (op == "max") return function(Maximum{}, 2);
  if (op == "min") return function(Minimum{}, 3);
  throw std::invalid_argument("all_reduce: op must be sum, avg, max or min");
}

template <typename Function>
void dispatch_ranks(int64_t ranks, Function function) {
  if (ranks <= 2) return function(std::integral_constant<int, 2>{});
  if (ranks <= 4) return function(std::integral_constant<int, 4>{});
  if (ranks <= kMostRanks) return function(std::integral_constant<int, kMostRanks>{});
  throw std::invalid_argument("all_reduce: at most 8 ranks");
}

// Reduces `input` over the ranks of a workspace into `out`, which no peer reads. `workspaces` holds
// what kernels reach through addresses: all ranks' workspaces and the report.
//
// `protocol` is "push", "pull" (staged), or "in place": all ranks' inputs lie at the same place of
// their workspaces.
//
// In a workspace, push's slots begin at byte `packets` and hold `most_pushed` bytes of data each.
// The two buffers of a staged pull begin at `staging` and have `most_staged` bytes each. Longer
// inputs take several launches. `blocks`: at most; 0: one per SM. `call` is a number of 16 bits,
// equal for calls that fit each other. `source` is where an input "in place" lies.
void all_reduce(Planner& planner, TensorList, const Operand& workspace, const Operand& input,
                std::string_view, std::string_view op, std::string_view protocol, int64_t rank,
                int64_t ranks, int64_t packets, int64_t most_pushed, int64_t staging,
                int64_t most_staged, int64_t blocks, Integer call, Integer source, Integer patience,
                const Operand& out) {
  const int64_t n = input.numel;
  if (n == 0) return;
  const int64_t size = size_of(input.dtype), bytes = n * size;
  const auto space = workspace.as<SignalSpace>();
  const bool is_push = protocol == "push", is_in_place = protocol == "in place";
  if (is_push && bytes > most_pushed) {
    throw std::invalid_argument("all_reduce: more bytes than a slot of packets holds");
  }
  const int64_t most_blocks =
      std::min<int64_t>(blocks > 0 ? blocks : planner.device.multiprocessors(), kMostSignalBlocks);
  const auto blocks_of = [&](int64_t part, int64_t bytes_of_block) {
    const int64_t needed = (part + bytes_of_block - 1) / bytes_of_block;
    return static_cast<unsigned>(std::min(needed, most_blocks));
  };
  dispatch_floating(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (sizeof(T) == 8) {
      throw std::invalid_argument("all_reduce: float16, bfloat16 or float32");
    } else {
      dispatch_op(op, [&](auto operation, int number) {
        using Op = decltype(operation);
        dispatch_ranks(ranks, [&](auto count) {
          constexpr int kRanks = decltype(count)::value;
          const float divisor = op == "avg" ? static_cast<float>(ranks) : 1.f;
          if (is_push) {
            constexpr int kBytes = kPushThreads * sizeof(uint2);
            Launch how{blocks_of(bytes, kBytes), kPushThreads};
            how.is_cooperative = true;
            planner.add<all_reduce_push<T, Op, kRanks>>(how, space, rank, ranks, number, patience,
                                                        packets, 2 * most_pushed, n,
                                                        input.as<const T>(), divisor, out.as<T>());
            return;
          }
          const int64_t most = is_in_place ? n : most_staged / size;
          for (int64_t first = 0; first < n; first += most) {
            const int64_t part = std::min(most, n - first);
            constexpr int kBytes = kPullThreads * kPulledBytes / kRanks;
            Launch how{blocks_of(part * size, kBytes), kPullThreads};
            how.is_cooperative = true;
            const auto from = input.as<const T>() + first;
            const auto to = out.as<T>() + first;
            if (is_in_place) {
              planner.add<all_reduce_pull<T, Op, kRanks, false>>(how, space, rank, ranks, number,
                                                                 call, patience, source, 0, part,
                                                                 from, divisor, to);
            } else {
              planner.add<all_reduce_pull<T, Op, kRanks, true>>(
                  how, space, rank, ranks, number, call, patience, staging, most_staged, part, from,
                  divisor, to);
            }
          }
        });
      });
    }
  });
  planner.plan.variant = is_push ? "push" : is_in_place ? "pull in place" : "pull";
}

DIGLOT_LAUNCHER(all_reduce,
                "(Tensor(a!)[] workspaces, Tensor(b!) workspace, Tensor input, str group, str op, "
                "str protocol, int rank, int ranks, int packets, int most_pushed, int staging, "
                "int most_staged, int blocks, int call, int source, int patience, Tensor(c!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
