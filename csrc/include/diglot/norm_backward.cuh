// The derivatives of layer norm and RMS norm, of which one launch finds those of the input, and of
// weight and bias what groups of rows add up to, and a second one adds up the groups. Twin of
// triton_ops/lib/norm_backward.py.
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
// shared memory meanwhile, so that memory is never idle while a row's sums are found. A thread that
// holds its part of a row has that of a later row brought to its place at once, others when they
// are done with it. A row belongs to neighbouring threads of a block, its team, or to a cluster of
// blocks. Of longer rows clusters have one at a time, read it twice, and have their sums in shared
// memory.
#pragma once

#include "diglot/cluster.cuh"
#include "diglot/next_launch.cuh"
#include "diglot/reduce.cuh"
#include "diglot/strides.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

constexpr int kNormThreads = 512;  // of a multiprocessor: sums take many registers

// A kernel variant: a thread has so many accesses of a row, of 16 bytes where kIsWide, otherwise as
// many elements one by one, neighbours by neighbouring threads. It holds a row in registers, as it
// is computed with, from the row's sums to its derivatives where kHolds; otherwise it reads it
// twice from shared memory.
template <int kAccesses_, bool kIsWide_, bool kHolds_>
struct NormShape {
  static constexpr int kAccesses = kAccesses_;
  static constexpr bool kIsWide = kIsWide_;
  static constexpr bool kHolds = kHolds_;
  template <typename T>
  static constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(T));
  template <typename T>
  static constexpr int kColumns = kAccesses * kElements<T>;    // of a thread
  static constexpr int kPartBytes = kAccesses * kAccessBytes;  // of a thread, of an array's row
};

// Arrays of rows, in the order of their offsets.
enum NormArray { kGradInput, kGradOutput, kInput, kGradSum, kStatistics, kNormArrays };

// Rows, and how they are shared out.
struct NormRows {
  int64_t n;      // elements of a row
  int64_t count;  // rows
  Strides<kNormArrays, int64_t> starts;
  int groups;     // of rows
  int blocks;     // that have a row together, as a cluster: a power of two
  int64_t share;  // elements of a row that a block has, at most
  int log_team;   // log2 of the threads of a block that have a row
  int stages;     // rows of a team that are in shared memory, or under way there
  int arrays;     // of which there are parts there
  int kept;       // where a row is read twice: of weight and bias, the sums in shared memory
  bool goes_on;   // from what a launch before has added up

  static constexpr int64_t kNarrow = 0xffffffff;  // the multiplication by a row's number is cheap

  DIGLOT_DEVICE auto offsets(int64_t row) const {
    if (starts.rank > 1 || count > kNarrow) return starts.offsets_by_loop(row);
    auto result = starts.start;
    DIGLOT_UNROLL
    for (int a = 0; a < kNormArrays; ++a) {
      result.of[a] += int64_t{static_cast<uint32_t>(row)} * starts.strides[0][a];
    }
    return result;
  }
};

template <typename T>
struct NormGradients {
  using Compute = compute_t<T>;

  const T* grad_output;
  const T* input;
  const T* grad_sum;  // or null
  const Compute* mean;
  const Compute* rstd;
  const void* weight;    // or null
  int weight_accesses;   // for the weights of an access: more than one where their type is wider,
                         // that which is computed in
  Compute* weight_sums;  // of the groups, one after the other; or null
  Compute* bias_sums;    // likewise
  T* grad_input;

  // Calls function(weights), with a pointer to their type. Null: they are ones.
  template <typename Function>
  DIGLOT_DEVICE void with_weights(Function function) const {
    if (sizeof(T) == sizeof(Compute) || weight_accesses == 1) {
      function(static_cast<const T*>(weight));
    } else {
      function(static_cast<const Compute*>(weight));
    }
  }
};

// The sums over a row that its derivative takes: of h x', and of h, if it is centred.
template <typename Compute, bool kIsCentered>
using NormSums = Sums<Compute, kIsCentered ? 2 : 1>;

// A row's statistics, for x' = x factor + shift.
template <typename Compute, bool kIsCentered>
struct NormRow {
  Compute factor, shift;

  template <typename T>
  DIGLOT_DEVICE static NormRow load(const NormGradients<T>& arrays, int64_t at) {
    return {arrays.rstd[at], kIsCentered ? arrays.mean[at] : Compute(0)};
  }
  DIGLOT_DEVICE NormRow ready() const { return {factor, -shift * factor}; }

  DIGLOT_DEVICE Compute normalized(Compute x) const {
    return kIsCentered ? fma(x, factor, shift) : x * factor;
  }
  // The derivative of an element.
  struct Map {
    Compute factor, slope, offset;

    // h is that of the output times the weight.
    DIGLOT_DEVICE Compute operator()(Compute h, Compute x) const {
      return fma(h, factor, kIsCentered ? fma(x, slope, offset) : x * slope);
    }
  };
  DIGLOT_DEVICE Map map(const NormSums<Compute, kIsCentered>& sums, Compute share) const {
    const Compute mean = sums.of[0] * share * factor;
    Map result{factor, -mean * factor, 0};
    if constexpr (kIsCentered) result.offset = -fma(mean, shift, sums.of[1] * share * factor);
    return result;
  }
};

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
  // What lies in a stage, one after the other.
  enum { kInputs, kGrads, kAddends, kReadArrays };

  DIGLOT_DEVICE NormPart(const NormRows& rows, const NormGradients<T>& arrays)
      : rows_(rows), arrays_(arrays) {
    constexpr int kAlong = Shape::kIsWide ? kElements : 1;
    own_column_ = first_column() + member() * kAlong;
    const int step = team() * kAlong;
    step_ = static_cast<uint32_t>(step * sizeof(T));
    count_ = (share() - member() * kAlong + step - 1) / step;
    // A warp's accesses are neighbours, so that a thread finds all of its by the first.
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    weights_ = shared() +
               member() / kWarpLanes * (kAccesses * arrays.weight_accesses * kWarpLanes) +
               member() % kWarpLanes;
    stages_ = behind_weights() + warp * (rows.stages * rows.arrays * kPart) + lane;
  }

  // Of the teams of a block: the row that the first begins with, and the number of this one. From
  // one row to a team's next one.
  DIGLOT_DEVICE int64_t first_row() const { return int64_t{group()} * teams(); }
  DIGLOT_DEVICE int number() const { return static_cast<int>(threadIdx.x) >> rows_.log_team; }
  DIGLOT_DEVICE int step() const { return rows_.groups * teams(); }

  DIGLOT_DEVICE Row statistics(int64_t row) const {
    if (row >= rows_.count) return {};
    return Row::load(arrays_, rows_.offsets(row).of[kStatistics]);
  }

  // Zeros where nothing will be brought.
  DIGLOT_DEVICE void clear() const {
    for (int stage = 0; stage < rows_.stages; ++stage) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        if (Shape::kIsWide && is_there(a, 0)) continue;
        for (int array = 0; array < rows_.arrays; ++array) *staged(stage, a, array) = uint4{};
      }
    }
    if (number() == 0) {
      for (int i = 0; i < kAccesses * arrays_.weight_accesses; ++i) {
        weights_[i * kWarpLanes] = uint4{};
      }
    }
    __syncthreads();
  }

  // Has the thread's part of a row of the arrays from kFirst to kEnd brought to a stage of shared
  // memory: it is there once wait_for_copies_before says so.
  template <int kFirst, int kEnd>
  DIGLOT_DEVICE void fetch(int64_t row, int stage) const {
    if (row >= rows_.count || (kFirst == kAddends && arrays_.grad_sum == nullptr)) return;
    const Sources from = sources(row);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) fetch_access<kFirst, kEnd>(from, stage, a);
  }

  // The weights into shared memory.
  DIGLOT_DEVICE void fetch_weights() const {
    constexpr int kLoads = 8;  // in flight
    const int threads = static_cast<int>(blockDim.x), share = this->share();
    const int64_t first_column = this->first_column();
    const auto fetch_all = [&](const auto* weights) {
      using Weight = std::decay_t<decltype(*weights)>;
      const Weight one = convert<Weight>(Compute(1));
      for (int first = static_cast<int>(threadIdx.x); first < share; first += kLoads * threads) {
        Weight loaded[kLoads];
        DIGLOT_UNROLL
        for (int load = 0; load < kLoads; ++load) {
          const int at = first + load * threads;
          loaded[load] = at < share && weights != nullptr ? weights[first_column + at] : one;
        }
        DIGLOT_UNROLL
        for (int load = 0; load < kLoads; ++load) {
          const int at = first + load * threads;
          if (at < share) *kept_weight<Weight>(at) = loaded[load];
        }
      }
    };
    arrays_.with_weights(fetch_all);
    __syncthreads();
  }

  // The thread's part of a row, if it is held.
  struct Held {
    Compute h[Shape::kHolds ? kColumns : 1];
    Compute x[Shape::kHolds ? kColumns : 1];
  };

  // Its sums; it is added to those of its columns. If it is held, another one follows it to the
  // stage.
  DIGLOT_DEVICE RowSums reduce(const Row& row, Held& held, int stage, int64_t next) {
    RowSums sums = RowSums::none();
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      visit(stage, a, [&](int i, Compute grad, Compute x, Compute weight) {
        const int k = a * kElements + i;
        const Compute normalized = row.normalized(x), h = grad * weight;
        sums.of[0] = fma(h, normalized, sums.of[0]);
        weight_sums_[k] = fma(grad, normalized, weight_sums_[k]);
        if constexpr (kIsCentered) {
          sums.of[1] += h;
          bias_sums_[k] += grad;
        }
        if constexpr (Shape::kHolds) held.h[k] = h, held.x[k] = x;
      });
    }
    if constexpr (Shape::kHolds) fetch<0, kAddends>(next, stage);
    return sums;
  }

  // Its derivatives.
  DIGLOT_DEVICE void store(int64_t row, const typename Row::Map& map, const Held& held, int stage,
                           int64_t next) const {
    T* const to = as_it_is(arrays_.grad_input + rows_.offsets(row).of[kGradInput] + own_column_);
    constexpr int kFirst = Shape::kHolds ? kAddends : 0;  // of what is still to be brought
    const bool has_next = next < rows_.count;
    const Sources from = sources(has_next ? next : row);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      Compute values[kElements];
      if constexpr (Shape::kHolds) {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          values[i] = map(held.h[a * kElements + i], held.x[a * kElements + i]);
        }
      } else {
        visit(stage, a, [&](int i, Compute grad, Compute x, Compute weight) {
          values[i] = map(grad * weight, x);
        });
      }
      if (arrays_.grad_sum != nullptr) {
        const auto more = unpack_computed<T>(*staged(stage, a, kAddends));
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) values[i] += more[i];
      }
      if constexpr (Shape::kIsWide) {
        if (is_there(a, 0)) {
          Vector<T, kElements> result;
          DIGLOT_UNROLL
          for (int i = 0; i < kElements; ++i) result[i] = convert<T>(values[i]);
          store_vector(at(to, a), result);
        }
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          if (is_there(a, i)) *at(to, a, i) = convert<T>(values[i]);
        }
      }
      if (has_next) fetch_access<kFirst, kReadArrays>(from, stage, a);
    }
  }

  // The group's sums over its rows of what its teams have added up. Stages are overwritten.
  DIGLOT_DEVICE void finish() {
    wait_for_copies();
    store_sums(weight_sums_, arrays_.weight_sums);
    if constexpr (kIsCentered) store_sums(bias_sums_, arrays_.bias_sums);
  }

 private:
  static constexpr int kPart = kAccesses * kWarpLanes;  // of an array's row: a warp's accesses

  // Found anew where they are wanted, not held in registers.
  DIGLOT_DEVICE int team() const { return 1 << rows_.log_team; }
  DIGLOT_DEVICE int member() const { return static_cast<int>(threadIdx.x) & (team() - 1); }
  DIGLOT_DEVICE int group() const { return static_cast<int>(blockIdx.x) / rows_.blocks; }
  // The columns that the block has.
  DIGLOT_DEVICE int64_t first_column() const {
    return static_cast<int>(blockIdx.x) % rows_.blocks * rows_.share;
  }
  DIGLOT_DEVICE int share() const {
    const int64_t left = rows_.n - first_column();
    return static_cast<int>(left < rows_.share ? left : rows_.share);
  }
  DIGLOT_DEVICE int teams() const { return static_cast<int>(blockDim.x) >> rows_.log_team; }

  // Of the elements of a row that the block has, each is one of these of a thread of a team.
  struct Place {
    int access, i, member;
  };
  DIGLOT_DEVICE Place place_of(int element) const {
    if constexpr (Shape::kIsWide) {
      const int access = element / kElements;
      return {access >> rows_.log_team, element % kElements, access & (team() - 1)};
    }
    const int turn = element >> rows_.log_team;
    return {turn / kElements, turn % kElements, element & (team() - 1)};
  }
  DIGLOT_DEVICE bool is_there(int a, int i) const {
    return (Shape::kIsWide ? a : a * kElements + i) < count_;
  }

  // Where the thread's part of a row begins.
  struct Sources {
    const T* of[kReadArrays];
  };
  DIGLOT_DEVICE Sources sources(int64_t row) const {
    const auto starts = rows_.offsets(row);
    return {{as_it_is(arrays_.input + starts.of[kInput] + own_column_),
             as_it_is(arrays_.grad_output + starts.of[kGradOutput] + own_column_),
             as_it_is(arrays_.grad_sum + starts.of[kGradSum] + own_column_)}};
  }
  template <int kFirst, int kEnd>
  DIGLOT_DEVICE void fetch_access(const Sources& from, int stage, int a) const {
    DIGLOT_UNROLL
    for (int array = kFirst; array < kEnd; ++array) {
      if (array == kAddends && arrays_.grad_sum == nullptr) continue;
      if constexpr (Shape::kIsWide) {
        if (is_there(a, 0)) copy_async(staged(stage, a, array), at(from.of[array], a));
      } else {
        *staged(stage, a, array) = pack(read(from.of[array], a));
      }
    }
  }
  // Of an access, or of an element that is accessed alone.
  template <typename U>
  DIGLOT_DEVICE U* at(U* part, int a, int i = 0) const {
    const uint32_t offset = (Shape::kIsWide ? a : a * kElements + i) * step_;
    using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
    return reinterpret_cast<U*>(reinterpret_cast<Byte*>(part) + offset);
  }
  DIGLOT_DEVICE Vector<T, kElements> read(const T* from, int a) const {
    if constexpr (Shape::kIsWide) {
      return load_vector<T, kElements>(at(from, a));
    } else {
      Vector<T, kElements> access;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        access[i] = is_there(a, i) ? *at(from, a, i) : T{};
      }
      return access;
    }
  }

  // Shared memory: the weights, and the stages behind them, of which a thread has its own parts.
  DIGLOT_DEVICE static uint4* shared() {
    extern __shared__ uint4 staged_accesses[];
    return staged_accesses;
  }
  DIGLOT_DEVICE uint4* behind_weights() const {
    const int lanes = team() < kWarpLanes ? kWarpLanes : team();
    return shared() + kAccesses * arrays_.weight_accesses * lanes;
  }
  DIGLOT_DEVICE uint4* staged(int stage, int a, int array) const {
    return stages_ + (stage * rows_.arrays + array) * kPart + a * kWarpLanes;
  }
  template <typename Weight>
  DIGLOT_DEVICE Weight* kept_weight(int element) const {
    constexpr int kAccessesEach = kElements * sizeof(Weight) / kAccessBytes;
    constexpr int kOfAccess = kElements / kAccessesEach;
    const Place place = place_of(element);
    uint4* const access = shared() + place.member % kWarpLanes +
                          ((place.member / kWarpLanes * kAccesses + place.access) * kAccessesEach +
                           place.i / kOfAccess) *
                              kWarpLanes;
    return reinterpret_cast<Weight*>(access) + place.i % kOfAccess;
  }

  // function(i, grad, x, weight) for the elements of an access, zeros if they are not there.
  template <typename Function>
  DIGLOT_DEVICE void visit(int stage, int a, Function function) const {
    const auto inputs = unpack_computed<T>(*staged(stage, a, kInputs));
    const auto grads = unpack_computed<T>(*staged(stage, a, kGrads));
    const auto visit_part = [&](int first, const auto& weights, int count) {
      DIGLOT_UNROLL
      for (int i = 0; i < count; ++i)
        function(first + i, grads[first + i], inputs[first + i], weights[i]);
    };
    if (sizeof(T) == sizeof(Compute) || arrays_.weight_accesses == 1) {
      visit_part(0, unpack_computed<T>(weights_[a * kWarpLanes]), kElements);
    } else {
      constexpr int kParts = kElements * sizeof(Compute) / kAccessBytes;
      DIGLOT_UNROLL
      for (int part = 0; part < kParts; ++part) {
        visit_part(part * (kElements / kParts),
                   unpack_computed<Compute>(weights_[(a * kParts + part) * kWarpLanes]),
                   kElements / kParts);
      }
    }
  }

  DIGLOT_DEVICE static Vector<Compute, kElements> load_wide(const Compute* from) {
    Vector<Compute, kElements> values;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) values[i] = from[i];
    return values;
  }

  DIGLOT_DEVICE void store_sums(Compute (&sums)[kColumns], Compute* output) const {
    if (output == nullptr) return;
    // Of lanes that have the same columns, the first ones get the sums of all.
    const int team = this->team(), thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    for (int apart = team; apart < kWarpLanes; apart *= 2) {
      DIGLOT_UNROLL
      for (int k = 0; k < kColumns; ++k) {
        sums[k] += __shfl_xor_sync(kAllLanes, sums[k], apart);
      }
    }
    const int side = team < kWarpLanes ? kWarpLanes : team, parts = threads / side;
    output += group() * rows_.n;
    if (parts == 1 && Shape::kIsWide) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        if (!is_there(a, 0) || thread >= team) continue;
        Compute* const to = output + own_column_ + a * kElements * team;
        Vector<Compute, kElements> values = {};
        if (rows_.goes_on) values = load_wide(to);
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) values[i] += sums[a * kElements + i];
        store_vector(to, values);
      }
      return;
    }
    // Those of the block, in place of its stages.
    Compute* const kept = reinterpret_cast<Compute*>(behind_weights());
    __syncthreads();
    if (thread % side < team) {
      DIGLOT_UNROLL
      for (int k = 0; k < kColumns; ++k) {
        kept[at_of(thread / side * team + member(), k)] = sums[k];
      }
    }
    __syncthreads();
    output += first_column();
    for (int at = thread, share = this->share(); at < share; at += threads) {
      const Place place = place_of(at);
      const int k = place.access * kElements + place.i;
      Compute sum = rows_.goes_on ? output[at] : Compute(0);
      for (int part = 0; part < parts; ++part) sum += kept[at_of(part * team + place.member, k)];
      output[at] = sum;
    }
  }
  // Where a thread's sum of a column is kept: turned from thread to thread, so that neither those
  // of one column nor those of one thread share few banks.
  DIGLOT_DEVICE static int at_of(int thread, int k) {
    return thread * kColumns + ((k + 9 * thread) & (kColumns - 1));
  }

  const NormRows& rows_;
  const NormGradients<T>& arrays_;
  int64_t own_column_;  // the first
  uint32_t step_;       // bytes from an access to the thread's next one, or from an element
  int count_;           // of them
  uint4* weights_;
  uint4* stages_;
  Compute weight_sums_[kColumns] = {};
  Compute bias_sums_[kIsCentered ? kColumns : 1] = {};
};

// Adds up states over teams, time after time. Teams of a block do not wait for each other.
template <typename State>
class TeamSum {
 public:
  // All threads call it, of all blocks.
  DIGLOT_DEVICE explicit TeamSum(const NormRows& rows) : rows_(rows) {
    if (rows.blocks > 1) shared().messages.open();
  }

  // Every thread of a team gets the sums of all its threads, those of other blocks too where they
  // have a row together. All threads call it. What is shared is used by turns: who is late may
  // still read what was there before, and a barrier lies between that and the turn after the next.
  DIGLOT_DEVICE State operator()(State state) {
    constexpr int kLogLanes = 5;
    if (rows_.log_team < kLogLanes) return lanes_sum(state, 1 << rows_.log_team);
    state = lanes_sum<kWarpLanes>(state);
    if (rows_.log_team == kLogLanes) return state;
    const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
    const int warps = 1 << (rows_.log_team - kLogLanes), first = warp & -warps;
    State(&of_warps)[kMostWarps] = shared().of_warps[number_ % 2];
    if (lane == 0) of_warps[warp] = state;
    part_barrier(first, warps * kWarpLanes);
    const int other = lane % kMostWarps;
    state = State::none();
    if (other < warps) state = of_warps[first + other];
    state = lanes_sum<kMostWarps>(state);
    if (rows_.blocks > 1) {
      auto& messages = shared().messages;
      messages.exchange(state, static_cast<int>(blockIdx.x) & (rows_.blocks - 1), rows_.blocks,
                        number_);
      state = lanes_sum(messages.received(lane & (rows_.blocks - 1), number_), rows_.blocks);
    }
    ++number_;
    return state;
  }

 private:
  static constexpr int kMostWarps = kNormThreads / kWarpLanes;
  struct Shared {
    State of_warps[2][kMostWarps];
    ClusterMessages<State, kMostClusterBlocks> messages;
  };
  DIGLOT_DEVICE static Shared& shared() {
    __shared__ Shared shared;
    return shared;
  }

  const NormRows& rows_;
  unsigned number_ = 0;
};

template <typename Shape, typename T, bool kIsCentered>
DIGLOT_DEVICE void norm_backward(const NormRows& rows, const NormGradients<T>& arrays) {
  using Compute = compute_t<T>;
  using RowSums = NormSums<Compute, kIsCentered>;
  using Part = NormPart<Shape, T, kIsCentered>;
  Part part(rows, arrays);
  part.clear();
  const int step = part.step();
  int64_t row = part.first_row() + part.number();
  for (int stage = 0; stage < rows.stages; ++stage) {
    part.template fetch<0, Part::kReadArrays>(row + stage * step, stage);
    group_copies();
  }
  auto next = part.statistics(row);
  part.fetch_weights();
  TeamSum<RowSums> team_sum(rows);
  let_next_launch_begin();

  const Compute share = Compute(1) / static_cast<Compute>(rows.n);
  int stage = 0;
  DIGLOT_NO_UNROLL
  for (; row - part.number() < rows.count; row += step) {  // as often for all teams of a block
    const auto statistics = next.ready();
    next = part.statistics(row + step);
    wait_for_copies_before(rows.stages - 1);
    const int64_t later = row + rows.stages * step;
    typename Part::Held held;
    RowSums sums = RowSums::none();
    if (row < rows.count) sums = part.reduce(statistics, held, stage, later);
    sums = team_sum(sums);
    if (row < rows.count) part.store(row, statistics.map(sums, share), held, stage, later);
    group_copies();
    stage = stage + 1 == rows.stages ? 0 : stage + 1;
  }
  part.finish();
  if (rows.blocks > 1) cluster_sync();  // interpreted, others may still read what this block sent
}

// Of the elements of a row that a block has, those that its threads access at once.
template <typename Shape, typename T>
struct NormBatch {
  static constexpr int kElements = Shape::template kElements<T>;
  static constexpr int kSize = kNormThreads * Shape::template kColumns<T>;

  int64_t first;
  int left;  // that are there

  DIGLOT_DEVICE NormBatch(int number, int64_t size) : first(int64_t{number} * kSize) {
    left = size - first < kSize ? static_cast<int>(size - first) : kSize;
  }

  DIGLOT_DEVICE static int element(int a, int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return Shape::kIsWide ? (a * kNormThreads + thread) * kElements + i
                          : (a * kElements + i) * kNormThreads + thread;
  }
  // An access of an array of elements of any type, by read(address). Zeros where nothing is.
  template <typename U, typename Read>
  DIGLOT_DEVICE Vector<U, kElements> load(const U* from, int a, Read read) const {
    Vector<U, kElements> result = {};
    constexpr int kStep = Shape::kIsWide ? kAccessBytes / static_cast<int>(sizeof(U)) : 1;
    using Part = std::conditional_t<Shape::kIsWide, uint4, U>;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; i += kStep) {
      if (element(a, i) >= left) continue;
      const Part part = read(reinterpret_cast<const Part*>(from + first + element(a, i)));
      memcpy(&result[i], &part, sizeof(part));
    }
    return result;
  }
  // Likewise by write(address, elements).
  template <typename U, typename Write>
  DIGLOT_DEVICE void store(U* to, int a, const Vector<U, kElements>& values, Write write) const {
    constexpr int kStep = Shape::kIsWide ? kAccessBytes / static_cast<int>(sizeof(U)) : 1;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; i += kStep) {
      if (element(a, i) >= left) continue;
      Vector<U, kStep> part;
      memcpy(&part, &values[i], sizeof(part));
      write(to + first + element(a, i), part);
    }
  }
};

// The same where no team holds a row: a cluster has one, of which each block reads its part twice,
// forwards and backwards, so that what the L2 cache still has is read first. What is added up over
// rows is in shared memory, or, if there is no room, in global memory: a thread has the same
// columns of all rows.
template <typename Shape, bool kIsCentered, typename T, typename Weight>
DIGLOT_DEVICE void norm_backward_again(const NormRows& rows, const NormGradients<T>& arrays,
                                       const Weight* weights) {
  using Compute = compute_t<T>;
  using Row = NormRow<Compute, kIsCentered>;
  using RowSums = NormSums<Compute, kIsCentered>;
  using Batch = NormBatch<Shape, T>;
  constexpr int kAccesses = Shape::kAccesses, kElements = Batch::kElements;
  constexpr int kFields = kIsCentered ? 2 : 1;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(blockIdx.x) / rows.blocks;
  const int64_t first = static_cast<int>(blockIdx.x) % rows.blocks * rows.share;
  const int64_t size = rows.n - first < rows.share ? rows.n - first : rows.share;
  const int batches = static_cast<int>((size + Batch::kSize - 1) / Batch::kSize);
  if (weights != nullptr) weights = as_it_is(weights + first);

  // What changes no derivative that it is added to, not even the sign of a zero.
  Vector<T, kElements> no_addends;
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) no_addends[i] = convert<T>(Compute(-0.0));
  // Weights come from the L1 cache, past which rows go.
  const auto near = [](const auto* at) { return *at; };
  const auto past_l1 = [](const auto* at) { return __ldcg(at); };
  const auto write = [](auto* to, const auto& part) { store_vector(to, part); };
  const auto write_near = [](auto* to, const auto& part) {  // to memory of either kind
    using Bits = std::conditional_t<sizeof(part) == sizeof(uint4), uint4, decltype(part[0] + 0)>;
    Bits bits;
    memcpy(&bits, &part, sizeof(part));
    *reinterpret_cast<Bits*>(to) = bits;
  };
  const auto load = [&](const T* from, const Batch& batch, uint4(&to)[kAccesses]) {
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      // Packed here, not where it is used: elements of 16 bits would take a register each.
      to[a] = pack(unpack<T>(pack(batch.load(from, a, past_l1))));
    }
  };
  // Has part of a row brought to the L2 cache, a line by each thread, so that memory is busy while
  // sums over a row are found.
  const auto announce = [&](const T* from, int64_t begin) {
    constexpr int kLine = 128 / static_cast<int>(sizeof(T));
    const int64_t at = (begin < 0 ? 0 : begin) + thread * kLine;
    if (at < size) prefetch(from + at);
  };
  constexpr int kAnnounced = kNormThreads * 128 / static_cast<int>(sizeof(T));
  // grad * weight of an access.
  const auto scaled = [&](const Vector<Compute, kElements>& grads, const Batch& batch, int a) {
    Vector<Compute, kElements> result = grads;
    if (weights == nullptr) return result;
    const auto scale = batch.load(weights, a, near);
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) result[i] *= convert<Compute>(scale[i]);
    return result;
  };

  // Of weight and bias, where their sums go, and where they are added up. Null: not asked for.
  const auto stored = [&](int field) {
    Compute* const sums = field == 0 ? arrays.weight_sums : arrays.bias_sums;
    return sums == nullptr ? nullptr : sums + group * rows.n + first;
  };
  Compute* added[kFields];
  extern __shared__ uint4 kept_sums[];
  Compute* room = reinterpret_cast<Compute*>(kept_sums);
  int kept = 0;
  DIGLOT_UNROLL
  for (int field = 0; field < kFields; ++field) {
    added[field] = stored(field);
    if (added[field] == nullptr) continue;
    if (kept++ < rows.kept) added[field] = room, room += rows.share;
    DIGLOT_NO_UNROLL
    for (int64_t at = thread; at < size; at += kNormThreads) {
      added[field][at] = rows.goes_on ? stored(field)[at] : Compute(0);
    }
  }
  __syncthreads();

  const auto statistics = [&](int64_t at) {
    return at < rows.count ? Row::load(arrays, rows.offsets(at).of[kStatistics]) : Row{};
  };
  auto next = statistics(group);
  TeamSum<RowSums> team_sum(rows);
  const Compute share = Compute(1) / static_cast<Compute>(rows.n);
  DIGLOT_NO_UNROLL
  for (int64_t at = group; at < rows.count; at += rows.groups) {
    const auto starts = rows.offsets(at);
    const int64_t later = at + rows.groups;
    const T* const inputs = arrays.input + starts.of[kInput] + first;
    const T* const grads = arrays.grad_output + starts.of[kGradOutput] + first;
    const T* const addends = arrays.grad_sum + starts.of[kGradSum] + first;
    T* const output = arrays.grad_input + starts.of[kGradInput] + first;
    const Row row = next.ready();
    next = statistics(later);
    if (arrays.grad_sum != nullptr) announce(addends, size - kAnnounced);
    uint4 held_inputs[kAccesses], held_grads[kAccesses];
    RowSums sums = RowSums::none();
    DIGLOT_NO_UNROLL
    for (int number = 0; number < batches; ++number) {
      const Batch batch(number, size);
      load(inputs, batch, held_inputs);
      load(grads, batch, held_grads);
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const auto x = unpack_computed<T>(held_inputs[a]), grad = unpack_computed<T>(held_grads[a]);
        const auto h = scaled(grad, batch, a);
        Vector<Compute, kElements> totals[kFields] = {};
        DIGLOT_UNROLL
        for (int field = 0; field < kFields; ++field) {
          if (added[field] != nullptr) totals[field] = batch.load(added[field], a, near);
        }
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          const Compute normalized = row.normalized(x[i]);
          sums.of[0] = fma(h[i], normalized, sums.of[0]);
          totals[0][i] = fma(grad[i], normalized, totals[0][i]);
          if constexpr (kIsCentered) sums.of[1] += h[i], totals[1][i] += grad[i];
        }
        DIGLOT_UNROLL
        for (int field = 0; field < kFields; ++field) {
          if (added[field] != nullptr) batch.store(added[field], a, totals[field], write_near);
        }
      }
    }
    if (later < rows.count) {
      const auto from = rows.offsets(later);
      announce(arrays.input + from.of[kInput] + first, 0);
      announce(arrays.grad_output + from.of[kGradOutput] + first, 0);
    }

    const auto map = row.map(team_sum(sums), share);
    DIGLOT_NO_UNROLL
    for (int number = batches - 1; number >= 0; --number) {
      const Batch batch(number, size);
      uint4 more[kAccesses];
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) more[a] = pack(no_addends);
      if (arrays.grad_sum != nullptr) load(addends, batch, more);
      if (number < batches - 1) {  // the last one is still held
        load(inputs, batch, held_inputs);
        load(grads, batch, held_grads);
      }
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const auto x = unpack_computed<T>(held_inputs[a]);
        const auto h = scaled(unpack_computed<T>(held_grads[a]), batch, a);
        const auto addend = unpack_computed<T>(more[a]);
        Vector<T, kElements> values;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) values[i] = convert<T>(map(h[i], x[i]) + addend[i]);
        batch.store(output, a, values, write);
      }
    }
  }

  __syncthreads();
  DIGLOT_UNROLL
  for (int field = 0; field < kFields; ++field) {
    if (added[field] == stored(field)) continue;
    for (int64_t at = thread; at < size; at += kNormThreads) stored(field)[at] = added[field][at];
  }
  if (rows.blocks > 1) cluster_sync();  // interpreted, others may still read what this block sent
}

template <typename Shape, typename T, bool kIsCentered>
DIGLOT_DEVICE void norm_backward_again(const NormRows& rows, const NormGradients<T>& arrays) {
  arrays.with_weights(
      [&](const auto* weights) { norm_backward_again<Shape, kIsCentered>(rows, arrays, weights); });
}

// How the threads of a block of norm_backward_sum lie: so many accesses side by side, and, one
// after the other, groups. Powers of two.
constexpr int kNormSumThreads = 256;
constexpr int kNormSumLoads = 8;  // in flight for each thread

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
  wait_for_launch_before();
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
