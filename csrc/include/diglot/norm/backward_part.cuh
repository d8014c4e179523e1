// The part of resident rows that a thread has, for norms' derivatives: stages, sums and stores.
#pragma once

#include "diglot/norm/backward.cuh"
#include "diglot/reduce/warp_block.cuh"

namespace diglot {

// A thread's part of the rows of its group. Rows arrive in stages of shared memory; a thread reads
// what it copied itself.
template <typename Shape, typename T, bool kIsCentered>
class NormPart {
 public:
  using Compute = compute_t<T>;
  using Row = NormRow<Compute, kIsCentered>;
  using RowSums = NormSums<Compute, kIsCentered>;
  static constexpr int kElements = Shape::template kElements<T>;
  static constexpr int kAccesses = Shape::kAccesses;
  static constexpr int kColumns = Shape::template kColumns<T>;
  // The arrays of a stage, one after the other.
  enum { kInputs, kGrads, kAddends, kReadArrays };

  DIGLOT_DEVICE NormPart(const NormRows& rows, const NormGradients<T>& arrays)
      : rows_(rows), arrays_(arrays) {
    constexpr int kAlong = Shape::kIsWide ? kElements : 1;
    column_ = first_column() + member() * kAlong;
    const int step = team() * kAlong;
    step_ = static_cast<uint32_t>(step * sizeof(T));
    count_ = (share() - member() * kAlong + step - 1) / step;
    // A warp's accesses are neighbours, so that a thread finds all of its accesses from the first.
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    weights_ = shared() +
               member() / kWarpLanes * (kAccesses * arrays.weight_accesses * kWarpLanes) +
               member() % kWarpLanes;
    stages_ = behind_weights() + warp * (rows.stages * rows.arrays * kPart) + lane;
  }

  // The first row of the block's first team, this team's number in the block, and the distance from
  // a team's row to its next.
  DIGLOT_DEVICE int64_t first_row() const { return int64_t{group()} * teams(); }
  DIGLOT_DEVICE int team_number() const { return static_cast<int>(threadIdx.x) >> rows_.log_team; }
  DIGLOT_DEVICE int step() const { return rows_.groups * teams(); }

  DIGLOT_DEVICE Row statistics(int64_t row) const {
    if (row >= rows_.count) return {};
    return Row::load(arrays_, rows_.offsets(row).array[kStatistics]);
  }

  // Zeros where no copy will write.
  DIGLOT_DEVICE void clear() const {
    for (int stage = 0; stage < rows_.stages; ++stage) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        if (Shape::kIsWide && exists(a, 0)) continue;
        for (int array = 0; array < rows_.arrays; ++array) *staged(stage, a, array) = uint4{};
      }
    }
    if (team_number() == 0) {
      for (int i = 0; i < kAccesses * arrays_.weight_accesses; ++i) {
        weights_[i * kWarpLanes] = uint4{};
      }
    }
    __syncthreads();
  }

  // Begins to copy the thread's part of a row to a stage: of the arrays from kFirst to kEnd. The
  // copy has arrived when wait_for_copies_before returns.
  template <int kFirst, int kEnd>
  DIGLOT_DEVICE void load_async(int64_t row, int stage) const {
    if (row >= rows_.count || (kFirst == kAddends && arrays_.grad_sum == nullptr)) return;
    const Sources from = sources(row);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) load_access_async<kFirst, kEnd>(from, stage, a);
  }

  // Stages the weights in shared memory.
  DIGLOT_DEVICE void stage_weights() const {
    constexpr int kLoads = 8;  // in flight
    const int threads = static_cast<int>(blockDim.x), share = this->share();
    const int64_t first_column = this->first_column();
    const auto stage = [&](const auto* weights) {
      using Weight = std::decay_t<decltype(*weights)>;
      const Weight one = convert<Weight>(Compute(1));
      for (int first = static_cast<int>(threadIdx.x); first < share; first += kLoads * threads) {
        Weight loaded[kLoads];
        DIGLOT_UNROLL
        for (int load = 0; load < kLoads; ++load) {
          const int i = first + load * threads;
          loaded[load] = i < share && weights != nullptr ? weights[first_column + i] : one;
        }
        DIGLOT_UNROLL
        for (int load = 0; load < kLoads; ++load) {
          const int i = first + load * threads;
          if (i < share) *staged_weight<Weight>(i) = loaded[load];
        }
      }
    };
    arrays_.with_weights(stage);
    __syncthreads();
  }

  // The thread's part of a row, if the shape holds it.
  struct Held {
    Compute h[Shape::kHolds ? kColumns : 1];
    Compute x[Shape::kHolds ? kColumns : 1];
  };

  // The sums over the thread's part of a row. Adds it to the sums of its columns. If the shape
  // holds rows, the row `next` follows it to the stage.
  DIGLOT_DEVICE RowSums reduce(const Row& row, Held& held, int stage, int64_t next) {
    RowSums sums = RowSums::none();
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      visit(stage, a, [&](int i, Compute grad, Compute x, Compute weight) {
        const int k = a * kElements + i;
        const Compute normalized = row.normalized(x), h = grad * weight;
        sums.values[0] = fma(h, normalized, sums.values[0]);
        weight_sums_[k] = fma(grad, normalized, weight_sums_[k]);
        if constexpr (kIsCentered) {
          sums.values[1] += h;
          bias_sums_[k] += grad;
        }
        if constexpr (Shape::kHolds) held.h[k] = h, held.x[k] = x;
      });
    }
    if constexpr (Shape::kHolds) load_async<0, kAddends>(next, stage);
    return sums;
  }

  // Stores the derivatives. The row `next`, or the rest of it, follows to the stage.
  DIGLOT_DEVICE void store(int64_t row, const typename Row::Map& map, const Held& held, int stage,
                           int64_t next) const {
    T* const output = as_it_is(arrays_.grad_input + rows_.offsets(row).array[kGradInput] + column_);
    constexpr int kFirst = Shape::kHolds ? kAddends : 0;  // of the arrays still to be copied
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
        const auto addends = unpack_computed<T>(*staged(stage, a, kAddends));
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) values[i] += addends[i];
      }
      if constexpr (Shape::kIsWide) {
        if (exists(a, 0)) {
          Vector<T, kElements> result;
          DIGLOT_UNROLL
          for (int i = 0; i < kElements; ++i) result[i] = convert<T>(values[i]);
          store_vector(access_address(output, a), result);
        }
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          if (exists(a, i)) *access_address(output, a, i) = convert<T>(values[i]);
        }
      }
      if (has_next) load_access_async<kFirst, kReadArrays>(from, stage, a);
    }
  }

  // Stores the group's sums, of all its teams. Overwrites the stages.
  DIGLOT_DEVICE void finish() {
    wait_for_copies();
    store_sums(weight_sums_, arrays_.weight_sums);
    if constexpr (kIsCentered) store_sums(bias_sums_, arrays_.bias_sums);
  }

 private:
  static constexpr int kPart = kAccesses * kWarpLanes;  // a warp's accesses to an array's row

  // Computed at each use, not kept in registers.
  DIGLOT_DEVICE int team() const { return 1 << rows_.log_team; }
  DIGLOT_DEVICE int member() const { return static_cast<int>(threadIdx.x) & (team() - 1); }
  DIGLOT_DEVICE int group() const { return static_cast<int>(blockIdx.x) / rows_.blocks; }
  // The block's columns.
  DIGLOT_DEVICE int64_t first_column() const {
    return static_cast<int>(blockIdx.x) % rows_.blocks * rows_.share;
  }
  DIGLOT_DEVICE int share() const {
    const int64_t rest = rows_.n - first_column();
    return static_cast<int>(rest < rows_.share ? rest : rows_.share);
  }
  DIGLOT_DEVICE int teams() const { return static_cast<int>(blockDim.x) >> rows_.log_team; }

  // Which element of which thread of a team an element of the block's share is.
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
  DIGLOT_DEVICE bool exists(int a, int i) const {
    return (Shape::kIsWide ? a : a * kElements + i) < count_;
  }

  // The addresses where the thread's part of a row begins.
  struct Sources {
    const T* array[kReadArrays];
  };
  DIGLOT_DEVICE Sources sources(int64_t row) const {
    const auto starts = rows_.offsets(row);
    return {{as_it_is(arrays_.input + starts.array[kInput] + column_),
             as_it_is(arrays_.grad_output + starts.array[kGradOutput] + column_),
             as_it_is(arrays_.grad_sum + starts.array[kGradSum] + column_)}};
  }
  template <int kFirst, int kEnd>
  DIGLOT_DEVICE void load_access_async(const Sources& from, int stage, int a) const {
    DIGLOT_UNROLL
    for (int array = kFirst; array < kEnd; ++array) {
      if (array == kAddends && arrays_.grad_sum == nullptr) continue;
      if constexpr (Shape::kIsWide) {
        if (exists(a, 0)) copy_async(staged(stage, a, array), access_address(from.array[array], a));
      } else {
        *staged(stage, a, array) = pack(read(from.array[array], a));
      }
    }
  }
  // The address of an access, or of element i of it where elements are accessed one by one.
  template <typename U>
  DIGLOT_DEVICE U* access_address(U* part, int a, int i = 0) const {
    const uint32_t offset = (Shape::kIsWide ? a : a * kElements + i) * step_;
    using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
    return reinterpret_cast<U*>(reinterpret_cast<Byte*>(part) + offset);
  }
  DIGLOT_DEVICE Vector<T, kElements> read(const T* from, int a) const {
    if constexpr (Shape::kIsWide) {
      return load_vector<T, kElements>(access_address(from, a));
    } else {
      Vector<T, kElements> access;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        access[i] = exists(a, i) ? *access_address(from, a, i) : T{};
      }
      return access;
    }
  }

  // Shared memory: the weights, and behind them the stages.
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
  DIGLOT_DEVICE Weight* staged_weight(int element) const {
    constexpr int kAccessesEach = kElements * sizeof(Weight) / kAccessBytes;
    constexpr int kPerAccess = kElements / kAccessesEach;
    const Place place = place_of(element);
    uint4* const access = shared() + place.member % kWarpLanes +
                          ((place.member / kWarpLanes * kAccesses + place.access) * kAccessesEach +
                           place.i / kPerAccess) *
                              kWarpLanes;
    return reinterpret_cast<Weight*>(access) + place.i % kPerAccess;
  }

  // Calls function(i, grad, x, weight) for the elements of an access; absent ones are zeros.
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
    // The first of the lanes with the same columns gets the sums of all of them.
    const int team = this->team(), thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    for (int distance = team; distance < kWarpLanes; distance *= 2) {
      DIGLOT_UNROLL
      for (int k = 0; k < kColumns; ++k) {
        sums[k] += __shfl_xor_sync(kAllLanes, sums[k], distance);
      }
    }
    const int side = team < kWarpLanes ? kWarpLanes : team, parts = threads / side;
    output += group() * rows_.n;
    if (parts == 1 && Shape::kIsWide) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        if (!exists(a, 0) || thread >= team) continue;
        Compute* const address = output + column_ + a * kElements * team;
        Vector<Compute, kElements> values = {};
        if (rows_.accumulates) values = load_wide(address);
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) values[i] += sums[a * kElements + i];
        store_vector(address, values);
      }
      return;
    }
    // The block's sums overwrite its stages.
    Compute* const block_sums = reinterpret_cast<Compute*>(behind_weights());
    __syncthreads();
    if (thread % side < team) {
      DIGLOT_UNROLL
      for (int k = 0; k < kColumns; ++k) {
        block_sums[sum_slot(thread / side * team + member(), k)] = sums[k];
      }
    }
    __syncthreads();
    output += first_column();
    for (int i = thread, share = this->share(); i < share; i += threads) {
      const Place place = place_of(i);
      const int k = place.access * kElements + place.i;
      Compute sum = rows_.accumulates ? output[i] : Compute(0);
      for (int part = 0; part < parts; ++part)
        sum += block_sums[sum_slot(part * team + place.member, k)];
      output[i] = sum;
    }
  }
  // Where a thread's sum of a column is. Rotated from thread to thread, so that neither the sums of
  // a column nor those of a thread conflict in banks.
  DIGLOT_DEVICE static int sum_slot(int thread, int k) {
    return thread * kColumns + ((k + 9 * thread) & (kColumns - 1));
  }

  const NormRows& rows_;
  const NormGradients<T>& arrays_;
  int64_t column_;  // the thread's first
  uint32_t step_;   // bytes from an access, or an element, to the thread's next
  int count_;       // of accesses, or of elements
  uint4* weights_;
  uint4* stages_;
  Compute weight_sums_[kColumns] = {};
  Compute bias_sums_[kIsCentered ? kColumns : 1] = {};
};

}  // namespace diglot
