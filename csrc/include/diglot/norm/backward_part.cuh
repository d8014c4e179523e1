// A thread's part of resident rows, for norms' derivatives: stages, sums and stores.
#pragma once

#include "diglot/norm/backward.cuh"
#include "diglot/reduce/warp_block.cuh"

namespace diglot {

// A thread's part of the rows of its group. Rows arrive in stages of shared memory. A thread reads
// only what it copied itself. If registers suffice, they hold a row from its sums to its
// derivatives, so that the stage is free for a later row sooner.
template <typename Shape, typename T, bool kIsCentered>
class NormPart {
 public:
  using Compute = compute_t<T>;
  using Row = NormRow<Compute, kIsCentered>;
  using RowSums = NormSums<Compute, kIsCentered>;
  static constexpr int kElements = Shape::template kElements<T>;
  static constexpr int kAccesses = Shape::kAccesses;
  static constexpr int kColumns = Shape::template kColumns<T>;
  // 16-byte accesses for the weights of one access to the input: weights have the type of the
  // computation.
  static constexpr int kWeightAccesses = sizeof(Compute) / sizeof(T);
  // Registers for the sums of a thread's columns, and for a row of its input and gradient.
  static constexpr int kSumRegisters =
      (kIsCentered ? 2 : 1) * kColumns * static_cast<int>(sizeof(Compute) / sizeof(float));
  static constexpr int kRowRegisters = 2 * Shape::kPartBytes / static_cast<int>(sizeof(float));
  static constexpr bool kHolds = kSumRegisters + kRowRegisters <= (Shape::kIsPeeled ? 80 : 112);
  // The arrays of a stage, one after the other.
  enum { kInputs, kGrads, kAddends, kReadArrays };

  DIGLOT_DEVICE NormPart(const NormRows& rows, const NormGradients<T>& arrays)
      : rows_(rows), arrays_(arrays) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes;
    team_number_ = thread / rows.team;
    const int member = thread - team_number_ * rows.team;
    // Steps between the thread's elements, and its first element among the block's columns.
    int step, first;
    if constexpr (Shape::kIsWide) {
      step = kWarpLanes * kElements;
      first = (member / kWarpLanes * (kAccesses * kWarpLanes) + member % kWarpLanes) * kElements;
    } else {
      step = rows.team;
      first = member;
    }
    if constexpr (Shape::kIsPeeled) skipped_ = rows.order.skipped(group());
    column_ = first_column() + first - skipped_;
    step_ = static_cast<uint32_t>(step * sizeof(T));
    count_ = (share() - first + step - 1) / step;
    if constexpr (Shape::kIsPeeled) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const int64_t column = column_ + element(a, 0);
        if (exists(a, 0) && (column < 0 || column + kElements > rows.n)) partial_ |= 1u << a;
      }
    }
    // A warp's weights and stages are contiguous, so a thread finds all of its accesses from the
    // first.
    weights_ = shared() + thread / kWarpLanes * warp_accesses() + lane;
    stages_ = weights_ + kWeightAccesses * kPart;
  }

  // The first row of the block's first team, this thread's team in the block, and the step to a
  // team's next row.
  DIGLOT_DEVICE int64_t first_row() const { return group(); }
  DIGLOT_DEVICE int team_number() const { return team_number_; }
  DIGLOT_DEVICE int step() const { return rows_.groups * teams(); }

  DIGLOT_DEVICE Row statistics(int64_t row) const {
    if (row >= rows_.count) return {};
    return Row::load(arrays_, rows_.offsets(row).array[kStatistics]);
  }

  // Zeros where no copy will write.
  DIGLOT_DEVICE void clear() const {
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (exists(a, 0)) continue;
      for (int array = 0; array < rows_.stages * rows_.arrays; ++array) {
        stages_[array * kPart + a * kWarpLanes] = uint4{};
      }
    }
  }

  // Begins to copy the thread's part of a row to a stage: first the inputs of its sums, then in
  // load_addends_async the rest that its derivatives need. The copies have arrived when
  // wait_for_copies_before returns.
  DIGLOT_DEVICE void load_async(int64_t row, int stage) const {
    if (row >= rows_.count) return;
    const auto starts = rows_.offsets(row);
    uint4* const to = staged(stage);
    copy_part(to + kInputs * kPart, row, arrays_.input + starts.array[kInput]);
    copy_part(to + kGrads * kPart, row, arrays_.grad_output + starts.array[kGradOutput]);
  }
  DIGLOT_DEVICE void load_addends_async(int64_t row, int stage) const {
    if (row >= rows_.count || arrays_.grad_sum == nullptr) return;
    const int64_t start = rows_.offsets(row).array[kGradSum];
    copy_part(staged(stage) + kAddends * kPart, row, arrays_.grad_sum + start);
  }

  // Stages the thread's weights in shared memory; absent elements become zeros. Calls meanwhile()
  // while the loads are in flight.
  template <typename Function>
  DIGLOT_DEVICE void load_weights(Function meanwhile) const {
    arrays_.with_weights([&](const auto* weights) {
      using Weight = std::decay_t<decltype(*weights)>;
      Vector<Weight, kElements> loaded[kAccesses];
      const bool is_aligned =
          Shape::kIsWide && !Shape::kIsPeeled && elements_to_alignment(weights) == 0;
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        loaded[a] = {};
        if (weights != nullptr && is_aligned) {
          if (exists(a, 0)) load_parts(loaded[a], weights + column_ + element(a, 0));
        } else {
          DIGLOT_UNROLL
          for (int i = 0; i < kElements; ++i) {
            if (!is_in_row(a, i)) continue;
            loaded[a][i] =
                weights == nullptr ? convert<Weight>(Compute(1)) : weights[column_ + element(a, i)];
          }
        }
      }
      meanwhile();
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        DIGLOT_UNROLL
        for (int part = 0; part < kWeightAccesses; ++part) {
          Vector<Compute> computed;
          DIGLOT_UNROLL
          for (int i = 0; i < kPerAccess; ++i) {
            computed[i] = convert<Compute>(loaded[a][part * kPerAccess + i]);
          }
          weights_[(a * kWeightAccesses + part) * kWarpLanes] = pack(computed);
        }
      }
    });
  }

  // Returns the sums over the thread's part of a row. Adds the row to the sums of the thread's
  // columns.
  DIGLOT_DEVICE RowSums reduce(const Row& row, int stage) {
    const uint4* const from = staged(stage);
    RowSums sums = RowSums::none();
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      uint4 inputs = from[kInputs * kPart + a * kWarpLanes];
      uint4 grads = from[kGrads * kPart + a * kWarpLanes];
      if constexpr (Shape::kIsPeeled) {
        if (!is_whole(a)) {
          inputs = without_neighbours(inputs, a);
          grads = without_neighbours(grads, a);
        }
      }
      if constexpr (kHolds) inputs_[a] = inputs, grads_[a] = grads;
      visit(inputs, grads, a, [&](int i, Compute grad, Compute x, Compute weight) {
        const int k = a * kElements + i;
        const Compute normalized = row.normalized(x), h = grad * weight;
        sums.values[0] = fma(h, normalized, sums.values[0]);
        weight_sums_[k] = fma(grad, normalized, weight_sums_[k]);
        if constexpr (kIsCentered) {
          sums.values[1] += h;
          bias_sums_[k] += grad;
        }
      });
    }
    return sums;
  }

  // Stores the derivatives.
  DIGLOT_DEVICE void store(int64_t row, const typename Row::Map& map, int stage) const {
    T* const output = as_it_is(arrays_.grad_input + rows_.offsets(row).array[kGradInput] + column_);
    const uint4* const from = staged(stage);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      const uint4 inputs = kHolds ? inputs_[a] : from[kInputs * kPart + a * kWarpLanes];
      const uint4 grads = kHolds ? grads_[a] : from[kGrads * kPart + a * kWarpLanes];
      Compute values[kElements];
      visit(inputs, grads, a, [&](int i, Compute grad, Compute x, Compute weight) {
        values[i] = map(grad * weight, x);
      });
      if (arrays_.grad_sum != nullptr) {
        const auto addends = unpack_computed<T>(from[kAddends * kPart + a * kWarpLanes]);
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) values[i] += addends[i];
      }
      if (Shape::kIsWide && is_whole(a)) {
        if (exists(a, 0)) {
          Vector<T, kElements> result;
          DIGLOT_UNROLL
          for (int i = 0; i < kElements; ++i) result[i] = convert<T>(values[i]);
          store_vector(access_address(output, a), result);
        }
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          if (is_in_row(a, i)) *access_address(output, a, i) = convert<T>(values[i]);
        }
      }
    }
  }

  // Stores the group's sums, of all its teams. Overwrites weights and stages.
  DIGLOT_DEVICE void finish() {
    wait_for_copies();
    if (arrays_.weight_sums == nullptr && arrays_.bias_sums == nullptr) return;
    // Among the lanes with the same columns the first gets the sums of all.
    for (int distance = rows_.team; distance < kWarpLanes; distance *= 2) {
      for_each_sum([&](int, Compute& sum) { sum += __shfl_xor_sync(kAllLanes, sum, distance); });
    }
    // Then the first team gets the sums of all: half of the remaining teams give theirs to the
    // other half, again and again.
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int side = rows_.team < kWarpLanes ? kWarpLanes : rows_.team;
    Compute* const given = reinterpret_cast<Compute*>(shared());
    DIGLOT_NO_UNROLL
    for (int left = threads / side; left > 1; left = (left + 1) / 2) {
      const int taking = (left + 1) / 2 * side, pitch = left * side - taking;
      __syncthreads();
      if (thread >= taking && thread < left * side) {
        for_each_sum([&](int k, Compute& sum) { given[k * pitch + thread - taking] = sum; });
      }
      __syncthreads();
      if (thread < pitch) {
        for_each_sum([&](int k, Compute& sum) { sum += given[k * pitch + thread]; });
      }
    }
    if (thread >= rows_.team) return;
    store_sums(weight_sums_, arrays_.weight_sums);
    if constexpr (kIsCentered) store_sums(bias_sums_, arrays_.bias_sums);
  }

 private:
  static constexpr int kPart = kAccesses * kWarpLanes;  // a warp's accesses to a row of one array
  static constexpr int kPerAccess = kAccessBytes / sizeof(Compute);  // weights of an access
  static constexpr int kSummed = Shape::kIsWide ? kPerAccess : 1;    // sums stored at once
  // A warp's copy to shared memory must start at a multiple of this, or it reads from L2 twice.
  static constexpr int kStageAlignment = 128;

  // Computed at each use, not kept in registers.
  DIGLOT_DEVICE int group() const { return static_cast<int>(blockIdx.x) / rows_.blocks; }
  DIGLOT_DEVICE int teams() const { return static_cast<int>(blockDim.x) / rows_.team; }
  // The block's columns.
  DIGLOT_DEVICE int64_t first_column() const {
    return static_cast<int>(blockIdx.x) % rows_.blocks * rows_.share;
  }
  DIGLOT_DEVICE int share() const {
    const int64_t rest = rows_.n + skipped_ - first_column();
    return static_cast<int>(rest < rows_.share ? rest : rows_.share);
  }
  DIGLOT_DEVICE bool exists(int a, int i) const {
    return (Shape::kIsWide ? a : a * kElements + i) < count_;
  }
  // Whether all elements of an access are in the row, and whether one element is.
  DIGLOT_DEVICE bool is_whole(int a) const { return !Shape::kIsPeeled || (partial_ >> a & 1) == 0; }
  DIGLOT_DEVICE bool is_in_row(int a, int i) const {
    if constexpr (!Shape::kIsPeeled) return exists(a, i);
    const int64_t column = column_ + element(a, i);
    return exists(a, i) && column >= 0 && column < rows_.n;
  }
  // Whether an access reaches outside the arrays: before their first row, or behind their last.
  DIGLOT_DEVICE bool is_beyond(int64_t row, int a) const {
    if (is_whole(a)) return false;
    const int64_t column = column_ + element(a, 0);
    return (row == 0 && column < 0) || (row == rows_.count - 1 && column + kElements > rows_.n);
  }
  // A partial access, with zeros for elements outside the row.
  DIGLOT_DEVICE uint4 without_neighbours(uint4 bits, int a) const {
    Vector<T, kElements> access = unpack<T>(bits);
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (!is_in_row(a, i)) access[i] = T{};
    }
    return pack(access);
  }
  // The distance from the thread's first element to another.
  DIGLOT_DEVICE int element(int a, int i) const {
    return Shape::kIsWide ? a * kWarpLanes * kElements + i : (a * kElements + i) * rows_.team;
  }

  // The address of an access, or of element i of it where elements are accessed one by one.
  template <typename U>
  DIGLOT_DEVICE U* access_address(U* part, int a, int i = 0) const {
    if constexpr (Shape::kIsWide) return part + element(a, i);
    using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
    return reinterpret_cast<U*>(reinterpret_cast<Byte*>(part) + (a * kElements + i) * step_);
  }
  DIGLOT_DEVICE void copy_part(uint4* to, int64_t row, const T* start) const {
    const T* const from = as_it_is(start + column_);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (Shape::kIsWide && !is_beyond(row, a)) {
        if (exists(a, 0)) copy_async(to + a * kWarpLanes, access_address(from, a));
      } else {
        Vector<T, kElements> access;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          access[i] = is_in_row(a, i) ? *access_address(from, a, i) : T{};
        }
        to[a * kWarpLanes] = pack(access);
      }
    }
  }

  // Shared memory: for each warp its weights, and behind them the stages.
  DIGLOT_DEVICE static uint4* shared() {
    alignas(kStageAlignment) extern __shared__ uint4 staged_rows[];
    return staged_rows;
  }
  DIGLOT_DEVICE int warp_accesses() const {
    return (kWeightAccesses + rows_.stages * rows_.arrays) * kPart;
  }
  DIGLOT_DEVICE uint4* staged(int stage) const { return stages_ + stage * rows_.arrays * kPart; }

  // Loads all elements of a vector by accesses of 16 bytes.
  template <typename U>
  DIGLOT_DEVICE static void load_parts(Vector<U, kElements>& to, const U* from) {
    constexpr int kAtOnce = kAccessBytes / static_cast<int>(sizeof(U));
    DIGLOT_UNROLL
    for (int first = 0; first < kElements; first += kAtOnce) {
      const uint4 bits = *reinterpret_cast<const uint4*>(from + first);
      memcpy(&to[first], &bits, sizeof(bits));
    }
  }

  // Calls function(i, grad, x, weight) for the elements of an access; absent ones are zeros.
  template <typename Function>
  DIGLOT_DEVICE void visit(uint4 input_bits, uint4 grad_bits, int a, Function function) const {
    const auto inputs = unpack_computed<T>(input_bits), grads = unpack_computed<T>(grad_bits);
    DIGLOT_UNROLL
    for (int part = 0; part < kWeightAccesses; ++part) {
      const auto weights =
          unpack_computed<Compute>(weights_[(a * kWeightAccesses + part) * kWarpLanes]);
      DIGLOT_UNROLL
      for (int k = 0; k < kPerAccess; ++k) {
        const int i = part * kPerAccess + k;
        function(i, grads[i], inputs[i], weights[k]);
      }
    }
  }

  // Calls function(k, sum) for the thread's sums.
  template <typename Function>
  DIGLOT_DEVICE void for_each_sum(Function function) {
    DIGLOT_UNROLL
    for (int k = 0; k < kColumns; ++k) {
      function(k, weight_sums_[k]);
      if constexpr (kIsCentered) function(kColumns + k, bias_sums_[k]);
    }
  }

  DIGLOT_DEVICE void store_sums(const Compute (&sums)[kColumns], Compute* output) const {
    if (output == nullptr) return;
    output += group() * rows_.order.pitch;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; i += kSummed) {
        if (!exists(a, i)) continue;
        const int64_t column = column_ + skipped_ + element(a, i);
        Compute* const address = output + rows_.order.place(column);
        Vector<Compute, kSummed> values = {};
        if (rows_.accumulates) values = load_vector<Compute, kSummed>(address);
        DIGLOT_UNROLL
        for (int e = 0; e < kSummed; ++e) values[e] += sums[a * kElements + i + e];
        store_vector(address, values);
      }
    }
  }

  const NormRows& rows_;
  const NormGradients<T>& arrays_;
  int64_t column_;        // the thread's first
  uint32_t step_;         // bytes to the thread's next element, where it accesses single elements
  int count_;             // accesses, or elements
  int team_number_;       // in the block
  int skipped_ = 0;       // elements of the first access before a peeled row
  unsigned partial_ = 0;  // bit a: access a has elements outside the row
  uint4* weights_;
  uint4* stages_;
  uint4 inputs_[kAccesses], grads_[kAccesses];  // a held row
  Compute weight_sums_[kColumns] = {};
  Compute bias_sums_[kIsCentered ? kColumns : 1] = {};
};

}  // namespace diglot
