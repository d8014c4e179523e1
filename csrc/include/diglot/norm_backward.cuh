// The derivatives of layer norm and RMS norm, of which one launch finds those of the input, and of
// weight and bias what groups of rows add up to, and a second one adds up the groups. Twin of
// triton_ops/lib/norm.py.
//
// With x' = (x - mean) rstd, h = g weight and means over a row of n elements,
//
//   grad_input = rstd (h - mean(h) - x' mean(h x')) + grad_sum,
//   grad_weight = the sum of g x' over all rows,  grad_bias = that of g;
//
// RMS norm has no mean: x' = x rstd, and no mean(h).
//
// Few groups of threads walk over all rows, each over its own: a thread has the same columns of all
// rows of its group, and adds up their derivatives in registers. The next rows are under way to
// shared memory meanwhile, so that memory is never idle while a row's sums are found. A row belongs
// to neighbouring threads of a block, its team, or to a cluster of blocks.
#pragma once

#include "diglot/cluster.cuh"
#include "diglot/reduce.cuh"
#include "diglot/strides.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

constexpr int kNormThreads = 512;  // of a multiprocessor: sums take many registers

// A kernel variant: a thread has so many accesses of a row, of 16 bytes where kIsWide, otherwise as
// many elements one by one, neighbours by neighbouring threads.
template <int kAccesses_, bool kIsWide_>
struct NormShape {
  static constexpr int kAccesses = kAccesses_;
  static constexpr bool kIsWide = kIsWide_;
  template <typename T>
  static constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(T));
  template <typename T>
  static constexpr int kColumns = kAccesses * kElements<T>;         // of a thread
  static constexpr int kStageBytes = 2 * kAccesses * kAccessBytes;  // of a thread: a row's part
  template <typename T>
  static constexpr int kWeightBytes = kColumns<T> * static_cast<int>(sizeof(compute_t<T>));
};

// Arrays of rows, in the order of their offsets.
enum NormArray { kGradInput, kGradOutput, kInput, kGradSum, kStatistics, kNormArrays };

// Rows, and how they are shared out.
struct NormRows {
  int64_t n;      // elements of a row
  int64_t count;  // rows
  Strides<kNormArrays, int64_t> starts;
  int groups;    // of rows
  int blocks;    // that have a row together, as a cluster: a power of two
  int share;     // elements of a row that a block has, at most
  int log_team;  // log2 of the threads of a block that have a row
  int stages;    // rows of a team that are in shared memory, or under way there
  bool goes_on;  // from what a launch before has added up
};

template <typename T>
struct NormGradients {
  using Compute = compute_t<T>;

  const T* grad_output;
  const T* input;
  const T* grad_sum;  // or null
  const Compute* mean;
  const Compute* rstd;
  const void* weight;  // or null
  DType weight_dtype;
  Compute* weight_sums;  // of the groups, one after the other; or null
  Compute* bias_sums;    // likewise
  T* grad_input;
};

// The sums over a row that its derivative takes: of h x', and of h, if it is centred.
template <typename Compute, bool kIsCentered>
using NormSums = Sums<Compute, kIsCentered ? 2 : 1>;

// A row's statistics.
template <typename Compute, bool kIsCentered>
struct NormRow {
  Compute center, factor;

  template <typename T>
  DIGLOT_DEVICE static NormRow load(const NormGradients<T>& arrays, int64_t at) {
    return {kIsCentered ? arrays.mean[at] : Compute(0), arrays.rstd[at]};
  }
  DIGLOT_DEVICE Compute normalized(Compute x) const {
    if constexpr (kIsCentered) x -= center;
    return x * factor;
  }
  // The derivative of an element, by the row's means.
  DIGLOT_DEVICE Compute gradient(Compute grad, Compute weight, Compute x,
                                 const NormSums<Compute, kIsCentered>& means) const {
    Compute inner = grad * weight;
    if constexpr (kIsCentered) inner = fma(grad, weight, -means.of[1]);
    return factor * fma(normalized(x), -means.of[0], inner);
  }
};

template <typename Compute, int kCount>
DIGLOT_DEVICE Sums<Compute, kCount> scaled(Sums<Compute, kCount> sums, Compute factor) {
  DIGLOT_UNROLL
  for (int i = 0; i < kCount; ++i) sums.of[i] *= factor;
  return sums;
}

// A thread's part of the rows of its group.
template <typename Shape, typename T, bool kIsCentered>
class NormPart {
 public:
  using Compute = compute_t<T>;
  using Row = NormRow<Compute, kIsCentered>;
  using RowSums = NormSums<Compute, kIsCentered>;
  static constexpr int kElements = Shape::template kElements<T>;
  static constexpr int kAccesses = Shape::kAccesses;
  static constexpr int kColumns = Shape::template kColumns<T>;

  DIGLOT_DEVICE NormPart(const NormRows& rows, const NormGradients<T>& arrays)
      : rows_(rows), arrays_(arrays) {
    const int thread = static_cast<int>(threadIdx.x);
    threads_ = static_cast<int>(blockDim.x);
    member_ = thread & (team() - 1);
    group_ = static_cast<int>(blockIdx.x) / rows.blocks;
    block_ = static_cast<int>(blockIdx.x) % rows.blocks;
    const int64_t left = rows.n - first_column();
    share_ = left < rows.share ? static_cast<int>(left) : rows.share;
  }

  // Of the teams of a block: the row that the first begins with, and the number of this one. From
  // one row to a team's next one.
  DIGLOT_DEVICE int64_t first_row() const { return int64_t{group_} * teams(); }
  DIGLOT_DEVICE int number() const { return static_cast<int>(threadIdx.x) >> rows_.log_team; }
  DIGLOT_DEVICE int64_t step() const { return int64_t{rows_.groups} * teams(); }

  DIGLOT_DEVICE Row statistics(int64_t row) const {
    if (row >= rows_.count) return {};
    return Row::load(arrays_, rows_.starts.offsets_by_loop(row).of[kStatistics]);
  }

  // Has the thread's part of a row brought to a stage of shared memory: it is there once
  // wait_for_copies_before says so.
  DIGLOT_DEVICE void fetch(int64_t row, int stage) const {
    if (row < rows_.count) {
      const auto starts = rows_.starts.offsets_by_loop(row);
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) fetch_access(starts, stage, a);
    }
    group_copies();
  }

  // The weights, as they are computed with, into shared memory.
  DIGLOT_DEVICE void fetch_weights() const {
    if (static_cast<int>(threadIdx.x) < team()) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        Vector<Compute, kElements> weights;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          weights[i] = Compute(1);
          if (arrays_.weight != nullptr && is_there(a, i)) {
            weights[i] = load_as<Compute>(arrays_.weight, first_column() + column(a, i),
                                          arrays_.weight_dtype);
          }
        }
        DIGLOT_UNROLL
        for (int part = 0; part < kParts; ++part) *weights_at(a, part) = part_of(weights, part);
      }
    }
    __syncthreads();
  }

  // The sums of the thread's part of a row, which is added to those of its columns.
  DIGLOT_DEVICE RowSums reduce(const Row& row, int stage) {
    RowSums sums = RowSums::none();
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      visit(stage, a, [&](int i, Compute grad, Compute x, Compute weight) {
        const Compute normalized = row.normalized(x), inner = grad * weight;
        sums.of[0] = fma(inner, normalized, sums.of[0]);
        weight_sums_[a * kElements + i] = fma(grad, normalized, weight_sums_[a * kElements + i]);
        if constexpr (kIsCentered) {
          sums.of[1] += inner;
          bias_sums_[a * kElements + i] += grad;
        }
      });
    }
    return sums;
  }

  // The derivatives of the thread's part of a row, for whose place in shared memory another one is
  // fetched then.
  DIGLOT_DEVICE void store(int64_t at, const Row& row, const RowSums& means, int stage,
                           int64_t next) const {
    const auto starts = rows_.starts.offsets_by_loop(at);
    const auto next_starts = rows_.starts.offsets_by_loop(next < rows_.count ? next : at);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      Vector<T, kElements> more = {};
      if (arrays_.grad_sum != nullptr) {
        more = read(arrays_.grad_sum + starts.of[kGradSum], a);
      }
      Vector<T, kElements> result;
      visit(stage, a, [&](int i, Compute grad, Compute x, Compute weight) {
        Compute value = row.gradient(grad, weight, x, means);
        if (arrays_.grad_sum != nullptr) value += convert<Compute>(more[i]);
        result[i] = convert<T>(value);
      });
      T* const to = arrays_.grad_input + starts.of[kGradInput] + first_column();
      if constexpr (Shape::kIsWide) {
        if (is_there(a, 0)) store_vector(to + column(a, 0), result);
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          if (is_there(a, i)) to[column(a, i)] = result[i];
        }
      }
      if (next < rows_.count) fetch_access(next_starts, stage, a);
    }
    group_copies();
  }

  // The group's sums over its rows of what its teams have added up. Stages are overwritten.
  DIGLOT_DEVICE void finish() {
    wait_for_copies();
    store_sums(weight_sums_, arrays_.weight_sums);
    if constexpr (kIsCentered) store_sums(bias_sums_, arrays_.bias_sums);
  }

 private:
  DIGLOT_DEVICE int team() const { return 1 << rows_.log_team; }
  DIGLOT_DEVICE int teams() const { return threads_ >> rows_.log_team; }
  DIGLOT_DEVICE int64_t first_column() const { return int64_t{block_} * rows_.share; }
  // Of the elements of a row that the block has, the number of one of this thread's.
  DIGLOT_DEVICE int column(int a, int i) const { return column_of(a, i, member_); }
  DIGLOT_DEVICE int column_of(int a, int i, int member) const {
    if constexpr (Shape::kIsWide) return ((a << rows_.log_team) + member) * kElements + i;
    return ((a * kElements + i) << rows_.log_team) + member;
  }
  DIGLOT_DEVICE bool is_there(int a, int i) const {
    return column(a, Shape::kIsWide ? 0 : i) < share_;
  }

  DIGLOT_DEVICE Vector<T, kElements> read(const T* row, int a) const {
    const T* const from = row + first_column();
    Vector<T, kElements> access = {};
    if constexpr (Shape::kIsWide) {
      if (is_there(a, 0)) access = load_vector<T, kElements>(from + column(a, 0));
    } else {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (is_there(a, i)) access[i] = from[column(a, i)];
      }
    }
    return access;
  }
  template <typename Offsets>
  DIGLOT_DEVICE void fetch_access(const Offsets& starts, int stage, int a) const {
    fetch_access(arrays_.grad_output + starts.of[kGradOutput], staged(stage, a, 0), a);
    fetch_access(arrays_.input + starts.of[kInput], staged(stage, a, 1), a);
    if (Shape::kIsWide && arrays_.grad_sum != nullptr && is_there(a, 0)) {
      prefetch(arrays_.grad_sum + starts.of[kGradSum] + first_column() + column(a, 0));
    }
  }
  DIGLOT_DEVICE void fetch_access(const T* row, uint4* to, int a) const {
    if constexpr (Shape::kIsWide) {
      if (is_there(a, 0)) copy_async(to, row + first_column() + column(a, 0));
    } else {
      *to = pack(read(row, a));
    }
  }

  // Shared memory: the weights, and the stages behind them, of which a thread has its own parts.
  DIGLOT_DEVICE static uint4* shared() {
    extern __shared__ uint4 staged_accesses[];
    return staged_accesses;
  }
  static constexpr int kParts =
      kElements * sizeof(Compute) / kAccessBytes;  // of an access' weights
  DIGLOT_DEVICE uint4* staged(int stage, int a, int array) const {
    return shared() + kAccesses * kParts * team() +
           ((stage * kAccesses + a) * 2 + array) * threads_ + threadIdx.x;
  }
  DIGLOT_DEVICE uint4* weights_at(int a, int part) const {
    return shared() + ((a * kParts + part) << rows_.log_team) + member_;
  }
  DIGLOT_DEVICE static uint4 part_of(const Vector<Compute, kElements>& values, int part) {
    Vector<Compute> result;
    DIGLOT_UNROLL
    for (int j = 0; j < kElements / kParts; ++j)
      result[j] = values[part * (kElements / kParts) + j];
    return pack(result);
  }

  // function(i, grad, x, weight) for the elements of an access that are there.
  template <typename Function>
  DIGLOT_DEVICE void visit(int stage, int a, Function function) const {
    if (Shape::kIsWide && !is_there(a, 0)) return;
    const auto grads = unpack<T>(*staged(stage, a, 0)), inputs = unpack<T>(*staged(stage, a, 1));
    DIGLOT_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const auto weight = unpack<Compute>(*weights_at(a, part));
      DIGLOT_UNROLL
      for (int j = 0; j < kElements / kParts; ++j) {
        const int i = part * (kElements / kParts) + j;
        if (Shape::kIsWide || is_there(a, i)) {
          function(i, convert<Compute>(grads[i]), convert<Compute>(inputs[i]), weight[j]);
        }
      }
    }
  }

  DIGLOT_DEVICE void store_sums(Compute (&sums)[kColumns], Compute* output) const {
    if (output == nullptr) return;
    output += group_ * rows_.n + first_column();
    // Of lanes that have the same columns, the first ones get the sums of all.
    for (int apart = team(); apart < kWarpLanes; apart *= 2) {
      DIGLOT_UNROLL
      for (int k = 0; k < kColumns; ++k) {
        sums[k] += __shfl_xor_sync(kAllLanes, sums[k], apart);
      }
    }
    const int team = this->team();
    const int side = team < kWarpLanes ? kWarpLanes : team;  // threads that write once
    const int parts = threads_ / side;
    if (parts == 1) {
      DIGLOT_UNROLL
      for (int k = 0; k < kColumns; ++k) {
        const int a = k / kElements, i = k % kElements;
        if (static_cast<int>(threadIdx.x) < team && is_there(a, i))
          add(output, column(a, i), sums[k]);
      }
      return;
    }
    Compute* const kept = reinterpret_cast<Compute*>(shared() + kAccesses * kParts * team);
    const int part = static_cast<int>(threadIdx.x) / side;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) % side < team) {
      DIGLOT_UNROLL
      for (int k = 0; k < kColumns; ++k) kept[(k * parts + part) * team + member_] = sums[k];
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < kColumns * team; at += threads_) {
      const int k = at >> rows_.log_team, member = at & (team - 1);
      const int to = column_of(k / kElements, k % kElements, member);
      if (to >= share_) continue;
      Compute sum = 0;
      for (int p = 0; p < parts; ++p) sum += kept[(k * parts + p) * team + member];
      add(output, to, sum);
    }
  }
  DIGLOT_DEVICE void add(Compute* output, int at, Compute sum) const {
    output[at] = rows_.goes_on ? output[at] + sum : sum;
  }

  const NormRows& rows_;
  const NormGradients<T>& arrays_;
  int threads_, member_, group_, block_;
  int share_;  // of a row's elements, the block's
  Compute weight_sums_[kColumns] = {};
  Compute bias_sums_[kIsCentered ? kColumns : 1] = {};
};

// Every thread of a team gets the sums of all its threads; of several blocks, if they have a row
// together. All threads call it, by turns with 0 and 1, so that who is late still reads what was
// before: every barrier lies between a turn and the one after the next.
template <typename State>
DIGLOT_DEVICE State team_sum(State state, const NormRows& rows, int turn) {
  constexpr int kMostWarps = kNormThreads / kWarpLanes;
  __shared__ State of_warps[2][kMostWarps];
  __shared__ State of_block[2];
  const int team = 1 << rows.log_team;
  state = lanes_sum(state, team < kWarpLanes ? team : kWarpLanes);
  if (team <= kWarpLanes) return state;
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int warps = team / kWarpLanes;
  if (lane == 0) of_warps[turn][warp] = state;
  __syncthreads();
  state = lanes_sum(of_warps[turn][(warp & -warps) + (lane & (warps - 1))], warps);
  if (rows.blocks == 1) return state;
  if (threadIdx.x == 0) of_block[turn] = state;
  cluster_sync();
  return lanes_sum(*at_rank(&of_block[turn], lane & (rows.blocks - 1)), rows.blocks);
}

template <typename Shape, typename T, bool kIsCentered>
DIGLOT_DEVICE void norm_backward(const NormRows& rows, const NormGradients<T>& arrays) {
  using Compute = compute_t<T>;
  NormPart<Shape, T, kIsCentered> part(rows, arrays);
  const int64_t step = part.step();
  int64_t first = part.first_row();
  int64_t row = first + part.number();
  for (int stage = 0; stage < rows.stages; ++stage) part.fetch(row + stage * step, stage);
  auto next = part.statistics(row);
  part.fetch_weights();

  const Compute share = Compute(1) / static_cast<Compute>(rows.n);
  int stage = 0, turn = 0;
  DIGLOT_NO_UNROLL
  for (; first < rows.count; first += step, row += step) {  // as often for all teams of a block
    const auto statistics = next;
    next = part.statistics(row + step);
    wait_for_copies_before(rows.stages - 1);
    auto sums = NormSums<Compute, kIsCentered>::none();
    if (row < rows.count) sums = part.reduce(statistics, stage);
    const auto means = scaled(team_sum(sums, rows, turn), share);
    if (row < rows.count) {
      part.store(row, statistics, means, stage, row + rows.stages * step);
    } else {
      group_copies();
    }
    stage = stage + 1 == rows.stages ? 0 : stage + 1;
    turn ^= 1;
  }
  part.finish();
  if (rows.blocks > 1) cluster_sync();  // others may still read this block's sums
}

// The same where no team holds a row: it is read twice, by a block, and what its group has added up
// is in memory.
template <int kThreads, typename T, bool kIsCentered>
DIGLOT_DEVICE void norm_backward_again(const NormRows& rows, const NormGradients<T>& arrays) {
  using Compute = compute_t<T>;
  using Row = NormRow<Compute, kIsCentered>;
  using RowSums = NormSums<Compute, kIsCentered>;
  const int thread = static_cast<int>(threadIdx.x);
  Compute* const weight_sums =
      arrays.weight_sums == nullptr ? nullptr : arrays.weight_sums + blockIdx.x * rows.n;
  Compute* const bias_sums =
      arrays.bias_sums == nullptr ? nullptr : arrays.bias_sums + blockIdx.x * rows.n;
  const auto weight_at = [&](int64_t column) {
    return arrays.weight == nullptr ? Compute(1)
                                    : load_as<Compute>(arrays.weight, column, arrays.weight_dtype);
  };
  if (!rows.goes_on) {
    for (int64_t column = thread; column < rows.n; column += kThreads) {
      if (weight_sums != nullptr) weight_sums[column] = Compute(0);
      if (bias_sums != nullptr) bias_sums[column] = Compute(0);
    }
  }
  const Compute share = Compute(1) / static_cast<Compute>(rows.n);
  for (int64_t at = blockIdx.x; at < rows.count; at += rows.groups) {
    const auto starts = rows.starts.offsets_by_loop(at);
    const Row row = Row::load(arrays, starts.of[kStatistics]);
    const T* const grads = arrays.grad_output + starts.of[kGradOutput];
    const T* const inputs = arrays.input + starts.of[kInput];
    RowSums sums = RowSums::none();
    for (int64_t column = thread; column < rows.n; column += kThreads) {
      const Compute grad = convert<Compute>(grads[column]);
      const Compute normalized = row.normalized(convert<Compute>(inputs[column]));
      const Compute inner = grad * weight_at(column);
      sums.of[0] = fma(inner, normalized, sums.of[0]);
      if constexpr (kIsCentered) sums.of[1] += inner;
      if (weight_sums != nullptr) weight_sums[column] = fma(grad, normalized, weight_sums[column]);
      if (bias_sums != nullptr) bias_sums[column] += grad;
    }
    const RowSums means = scaled(block_reduce<kThreads>(sums), share);
    for (int64_t column = thread; column < rows.n; column += kThreads) {
      Compute value = row.gradient(convert<Compute>(grads[column]), weight_at(column),
                                   convert<Compute>(inputs[column]), means);
      if (arrays.grad_sum != nullptr) {
        value += convert<Compute>(arrays.grad_sum[starts.of[kGradSum] + column]);
      }
      arrays.grad_input[starts.of[kGradInput] + column] = convert<T>(value);
    }
  }
}

// How the threads of a block of norm_backward_sum lie: so many accesses side by side, and, one
// after the other, groups. Powers of two.
constexpr int kNormSumThreads = 256;
constexpr int kNormSumLoads = 4;  // in flight for each thread

// Where the sums of a weight and of a bias go. Null: not asked for.
struct NormSumOutputs {
  void* of[2];
};

// output = the sum over groups, in order; blockIdx.y is the number of the field.
template <int kElements, typename Compute>
DIGLOT_DEVICE void norm_backward_sum(int64_t n, int groups, int side, const Compute* sums,
                                     const NormSumOutputs& outputs, DType dtype) {
  using Access = Vector<Compute, kElements>;
  __shared__ Access shared[kNormSumThreads];
  const int thread = static_cast<int>(threadIdx.x), deep = kNormSumThreads / side;
  const int64_t first = (int64_t{blockIdx.x} * side + thread % side) * kElements;
  Access total = {};
  if (first < n) {
    const Compute* const from = sums + int64_t{blockIdx.y} * groups * n + first;
    for (int group = thread / side; group < groups; group += deep * kNormSumLoads) {
      Access loaded[kNormSumLoads];
      DIGLOT_UNROLL
      for (int load = 0; load < kNormSumLoads; ++load) {
        const int at = group + load * deep;
        loaded[load] = at < groups ? load_vector<Compute, kElements>(from + at * n) : Access{};
      }
      DIGLOT_UNROLL
      for (int load = 0; load < kNormSumLoads; ++load) {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) total[i] += loaded[load][i];
      }
    }
  }
  shared[thread] = total;
  __syncthreads();
  for (int half = kNormSumThreads / 2; half >= side; half /= 2) {
    if (thread < half) {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) shared[thread][i] += shared[thread + half][i];
    }
    __syncthreads();
  }
  void* const output = blockIdx.y == 0 ? outputs.of[0] : outputs.of[1];
  if (thread < side && first < n) {
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) store_as(output, first + i, dtype, shared[thread][i]);
  }
}

}  // namespace diglot
