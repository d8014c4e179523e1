// The sum of a tensor over all ranks of a group, a residual added to it, and the RMS norm of rows,
// in one launch: kernel, launcher, registration. Twin of
// triton_ops/distributed/all_reduce_add_rms_norm.py.
#include "diglot/launch/exchange.h"
#include "diglot/math.cuh"
#include "diglot/reduce/warp_block.cuh"
#include "torch/launcher.h"

namespace diglot {

constexpr int kRowThreads = 256;
// Accesses of 16 bytes that a thread makes to a row, at most.
constexpr int kMostRowAccesses = 8;

// Blocks that fit on an SM. Kernels that hold much have smaller grids.
constexpr int blocks_on_sm(int ranks, int count) { return ranks > 2 || count > 4 ? 1 : 2; }

// Each row has a block, the same on all ranks. It holds the row in registers. kCount: accesses of
// 16 bytes that a thread makes to it. `place` is where the two buffers of `room` bytes, or the
// inputs, lie in a workspace.
template <typename T, int kRanks, bool kIsStaged, int kCount>
__global__ void __launch_bounds__(kRowThreads, blocks_on_sm(kRanks, kCount))
    all_reduce_add_rms_norm_rows(SignalSpace* space, int rank, int ranks, int op, int call,
                                 int64_t patience, int64_t place, int64_t room, int64_t rows,
                                 int64_t columns, const T* input, const T* residual,
                                 const T* weight, float eps, float inverse_n, float* statistics,
                                 T* sum, T* out) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  const auto accesses = static_cast<int>(columns / kElements);  // of a row
  char* owners[kRanks];
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    owners[r] = reinterpret_cast<char*>(space->addresses[r < ranks ? r : rank]) + place;
  }
  const auto at = [&](const T* array, int64_t row, int i) {
    return reinterpret_cast<const uint4*>(array + row * columns) + i;
  };
  const auto load_row = [&](const T* array, int64_t row, uint4(&bits)[kCount]) {
    DIGLOT_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const int i = k * kRowThreads + static_cast<int>(threadIdx.x);
      if (i < accesses) bits[k] = *at(array, row, i);
    }
  };
  // These loads are in flight while the epoch is.
  uint4 staged[kCount];
  if (kIsStaged) load_row(input, blockIdx.x, staged);
  Signals signals(space, {rank, ranks, op, static_cast<uint16_t>(call), patience});
  if (kIsStaged) {
    const int64_t buffer = signals.parity() * room;
    DIGLOT_UNROLL
    for (char*& owner : owners) owner += buffer;
    auto* const own = reinterpret_cast<uint4*>(reinterpret_cast<char*>(space) + place + buffer);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      DIGLOT_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const int i = k * kRowThreads + static_cast<int>(threadIdx.x);
        if (i < accesses) own[row * accesses + i] = staged[k];
      }
      if (row + gridDim.x < rows) load_row(input, row + gridDim.x, staged);
    }
  }
  const bool have_met = signals.meet(kOpening);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    // Accesses whose loads are in flight at once. More would take too many registers.
    constexpr int kHeld = kRanks == 2 && kCount <= 4 ? kCount / 2 : 1;
    uint4 bits[kHeld][kRanks], added[kHeld];
    const auto load_sources = [&](int k, int i) {
      if (i >= accesses) return;
      added[k] = *at(residual, row, i);
      DIGLOT_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        bits[k][r] = reinterpret_cast<const uint4*>(owners[r])[row * accesses + i];
      }
    };
    if (kHeld > 1) {
      DIGLOT_UNROLL
      for (int k = 0; k < kHeld; ++k) {
        load_sources(k % kHeld, k * kRowThreads + static_cast<int>(threadIdx.x));
      }
    }
    Held<T, kElements> totals[kCount];
    float squares = 0;
    DIGLOT_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const int i = k * kRowThreads + static_cast<int>(threadIdx.x);
      if (i >= accesses) continue;
      if (kHeld == 1) load_sources(0, i);
      uint4(&theirs)[kRanks] = bits[k % kHeld];
      DIGLOT_UNROLL
      for (uint4& each : theirs) each = as_they_are(each);  // not unpacked before it is needed
      Vector<T, kElements> values[kRanks], addends;
      unpack_ranks(theirs, values);
      memcpy(&addends, &added[k % kHeld], sizeof(addends));
      Vector<T, kElements> total;
      float sums[kElements];
      reduce_ranks<Sum>(values, ranks, have_met, sums);
      // The reduced values are rounded, as all_reduce rounds them, and then the sum with the
      // residual, as add_rms_norm does.
      DIGLOT_UNROLL
      for (int e = 0; e < kElements; ++e) {
        const float reduced = convert<float>(convert<T>(sums[e]));
        total[e] = convert<T>(reduced + convert<float>(addends[e]));
        const float x = convert<float>(total[e]);
        squares = fma(x, x, squares);
      }
      totals[k] = Held<T, kElements>::make(total);
      totals[k].bits = as_they_are(totals[k].bits);
      if (kHeld > 1 && k + kHeld < kCount) load_sources(k % kHeld, i + kHeld * kRowThreads);
    }
    // These loads are in flight while the block reduces: earlier there is no register for them.
    uint4 scales[kCount];
    if (weight != nullptr) load_row(weight, 0, scales);
    const float of_row = block_reduce<kRowThreads>(Sums<float, 1>{{squares}}).values[0];
    // All threads have read the peers' last row.
    if (!kIsStaged && row + gridDim.x >= rows) signals.arrive(kClosing);
    const float factor = reciprocal_root(fma(of_row, inverse_n, eps));
    if (statistics != nullptr && threadIdx.x == 0) statistics[row] = factor;
    DIGLOT_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const int i = k * kRowThreads + static_cast<int>(threadIdx.x);
      if (i >= accesses) continue;
      Vector<T, kElements> factors, results;
      const Vector<T, kElements> total = totals[k].get();
      if (weight != nullptr) {
        memcpy(&factors, &scales[k], sizeof(factors));
      }
      DIGLOT_UNROLL
      for (int e = 0; e < kElements; ++e) {
        const float y = convert<float>(total[e]) * factor;
        results[e] = convert<T>(weight == nullptr ? y : y * convert<float>(factors[e]));
      }
      store_within(sum + row * columns, int64_t{i} * kElements, columns, true, total);
      store_within(out + row * columns, int64_t{i} * kElements, columns, true, results);
    }
  }
  if (!kIsStaged) signals.wait(kClosing);
}

}  // namespace diglot

namespace {

using namespace diglot;

constexpr int kOp = 10;  // for reports

template <auto kKernel, int kOnSm>
struct Chosen {
  static constexpr auto kValue = kKernel;
  static constexpr int kBlocksOnSm = kOnSm;
};
template <typename T, int kRanks, bool kIsStaged, int kCount>
using ChosenFor = Chosen<all_reduce_add_rms_norm_rows<T, kRanks, kIsStaged, kCount>,
                         blocks_on_sm(kRanks, kCount)>;

template <typename Function>
void dispatch_count(int64_t accesses, Function function) {
  if (accesses <= 4 * kRowThreads) return function(std::integral_constant<int, 4>{});
  if (accesses <= kMostRowAccesses * kRowThreads) {
    return function(std::integral_constant<int, kMostRowAccesses>{});
  }
  throw std::invalid_argument("all_reduce_add_rms_norm: a row has more than 32 KiB");
}

// sum = the sum of `input` over the ranks, rounded, + residual; out = the RMS norm of its rows,
// which begin at multiples of 16 bytes. `statistics`: the factor of each row, float32. The other
// arguments are those of all_reduce.
void all_reduce_add_rms_norm(Planner& planner, TensorList, const Operand& workspace,
                             const Operand& input, const Operand& residual, const Operand* weight,
                             std::string_view, std::string_view protocol, int64_t rank,
                             int64_t ranks, int64_t, int64_t, int64_t staging, int64_t most_staged,
                             int64_t blocks, Integer call, Integer source, Integer patience,
                             Real eps, const Operand* statistics, const Operand& sum,
                             const Operand& out) {
  if (input.numel == 0) return;
  const int64_t columns = input.sizes[input.rank - 1], rows = input.numel / columns;
  const int64_t row_bytes = columns * size_of(input.dtype);
  const Protocol way(protocol);
  const bool is_aligned = row_bytes % kAccessBytes == 0 && input.is_aligned() &&
                          residual.is_aligned() && sum.is_aligned() && out.is_aligned() &&
                          (weight == nullptr || weight->is_aligned());
  if (!is_aligned) {
    throw std::invalid_argument("all_reduce_add_rms_norm: rows begin at multiples of 16 bytes");
  }
  if (way.is_push) throw std::invalid_argument("all_reduce_add_rms_norm: rows are pulled");
  const int64_t most = way.is_in_place ? rows : most_staged / row_bytes;
  if (most == 0) {
    throw std::invalid_argument("all_reduce_add_rms_norm: a row is longer than a buffer");
  }
  const auto space = workspace.as<SignalSpace>();
  dispatch_reduced(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    dispatch_ranks(ranks <= 2 ? ranks : kMostRanks, [&](auto number) {
      constexpr int kRanks = decltype(number)::value;
      if constexpr (kRanks != 4) {
        dispatch_count(row_bytes / kAccessBytes, [&](auto count) {
          constexpr int kCount = decltype(count)::value;
          for (int64_t first = 0; first < rows; first += most) {
            const int64_t part = std::min(most, rows - first), skipped = first * columns;
            const auto add = [&](auto kernel, const auto& place, int64_t room) {
              // All blocks of two groups run at once.
              const int64_t sms = planner.device.multiprocessors();
              const int64_t most_blocks =
                  decltype(kernel)::kBlocksOnSm > 1 ? sms : std::max<int64_t>(sms / 2, 1);
              Launch how{exchange_blocks(planner, blocks, std::min(part, most_blocks), 1),
                         kRowThreads};
              how.is_cooperative = true;
              planner.add<decltype(kernel)::kValue>(
                  how, space, rank, ranks, kOp, call, patience, place, room, part, columns,
                  input.as<const T>() + skipped, residual.as<const T>() + skipped,
                  address_of<const T>(weight), eps, 1.f / static_cast<float>(columns),
                  address_of<float>(statistics) + first, sum.as<T>() + skipped,
                  out.as<T>() + skipped);
            };
            if (way.is_in_place) {
              add(ChosenFor<T, kRanks, false, kCount>{}, source, 0);
            } else {
              add(ChosenFor<T, kRanks, true, kCount>{}, staging, most_staged);
            }
          }
        });
      }
    });
  });
  planner.plan.variant = way.name();
}

DIGLOT_LAUNCHER(all_reduce_add_rms_norm,
                "(Tensor(a!)[] workspaces, Tensor(b!) workspace, Tensor input, Tensor residual, "
                "Tensor? weight, str group, str protocol, int rank, int ranks, int packets, "
                "int most_pushed, int staging, int most_staged, int blocks, int call, int source, "
                "int patience, float eps, Tensor(c!)? statistics, Tensor(d!) sum, Tensor(e!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
