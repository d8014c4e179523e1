// A thread's part of resident rows, for norms' derivatives: stages, sums and stores.
#pragma once

#include "diglot/norm/backward_columns.cuh"
#include "diglot/reduce/warp_block.cuh"

namespace diglot {

// A thread's part of the rows of its group. Rows arrive in stages of shared memory. A thread reads
// only what it copied itself. If registers suffice, they hold a row from its sums to its
// derivatives, so that the stage is free for a later row sooner.
template <typename Shape, typename T, bool kIsCentered>
class NormPart : public NormColumns<Shape, T> {
 public:
  using Columns = NormColumns<Shape, T>;
  using Columns::kAccesses, Columns::kColumns, Columns::kElements;
  using Compute = compute_t<T>;
  using Row = NormRow<Compute, kIsCentered>;
  using RowSums = NormSums<Compute, kIsCentered>;
  // 16-byte accesses for the weights of one access to the input: weights have the type of the
  // computation.
  static constexpr int kWeightAccesses = sizeof(Compute) / sizeof(T);
  // Registers for the sums of a thread's columns, and for a row of its input and gradient.
  static constexpr int kSumRegisters =
      (kIsCentered ? 2 : 1) * kColumns * static_cast<int>(sizeof(Compute) / sizeof(float));
  static constexpr int kRowRegisters = 2 * Shape::kPartBytes / static_cast<int>(sizeof(float));
  static constexpr int kMostRegisters = Shape::kIsPeeled ? 80 : Shape::kIsWide ? 112 : 64;
  static constexpr bool kHolds = kSumRegisters + kRowRegisters <= kMostRegisters;
  // The arrays of a stage, one after the other.
  enum { kInputs, kGrads, kAddends, kReadArrays };

  DIGLOT_DEVICE NormPart(const NormRows& rows, const NormGradients<T>& arrays)
      : Columns(rows), arrays_(arrays) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    // A warp's weights and stages are contiguous, so a thread finds all of its accesses from the
    // first.
    weights_ = shared() + warp * warp_accesses() + static_cast<int>(threadIdx.x) % kWarpLanes;
    stages_ = weights_ + kWeightAccesses * kPart;
  }

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
    const bool has_results = arrays_.has_results();
    if (!has_results && arrays_.weight_sums == nullptr && arrays_.bias_sums == nullptr) return;
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
    // The sums of the only group pass through shared memory, so that neighbouring threads get
    // neighbours.
    NormSumOrder order = rows_.order;
    if (has_results) order.pitch = rows_.share;
    const int64_t start = column_ + skipped_ - (has_results ? first_column() : 0);
    const int64_t before = has_results ? 0 : group() * order.pitch;
    const auto store = [&](const Compute(&sums)[kColumns], Compute* output) {
      if (output != nullptr) store_sums(sums, output + before, start, order);
    };
    if (has_results) __syncthreads();
    if (thread < rows_.team) {
      store(weight_sums_, has_results ? given : arrays_.weight_sums);
      if constexpr (kIsCentered)
        store(bias_sums_, has_results ? given + order.pitch : arrays_.bias_sums);
    }
    if (!has_results) return;
    __syncthreads();
    store_results(given, order);
  }

 private:
  using Columns::access_address, Columns::element, Columns::exists, Columns::first_column,
      Columns::group, Columns::is_beyond, Columns::is_in_row, Columns::is_whole, Columns::share,
      Columns::without_neighbours;
  using Columns::column_, Columns::rows_, Columns::skipped_;

  static constexpr int kPart = kAccesses * kWarpLanes;  // a warp's accesses to a row of one array
  static constexpr int kPerAccess = kAccessBytes / sizeof(Compute);  // weights of an access
  static constexpr int kSummed = Shape::kIsWide ? kPerAccess : 1;    // sums stored at once
  // A warp's copy to shared memory must start at a multiple of this, or it reads from L2 twice.
  static constexpr int kStageAlignment = 128;

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

  // Stores the thread's sums of a field. `start`: the place of its first column in the order.
  DIGLOT_DEVICE void store_sums(const Compute (&sums)[kColumns], Compute* output, int64_t start,
                                const NormSumOrder& order) const {
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; i += kSummed) {
        if (!exists(a, i)) continue;
        Compute* const address = output + order.place(start + element(a, i));
        Vector<Compute, kSummed> values = {};
        if (rows_.accumulates) values = load_vector<Compute, kSummed>(address);
        DIGLOT_UNROLL
        for (int e = 0; e < kSummed; ++e) values[e] += sums[a * kElements + i + e];
        store_anywhere(address, values);
      }
    }
  }

  // Stores the gradients of weight and bias: the block's sums, from shared memory.
  DIGLOT_DEVICE void store_results(const Compute* sums, const NormSumOrder& order) const {
    const int64_t start = first_column() - skipped_;
    const int size = share();
    DIGLOT_NO_UNROLL
    for (int field = 0; field < (kIsCentered ? 2 : 1); ++field) {
      void* const output = field == 0 ? arrays_.results[0] : arrays_.results[1];
      if (output == nullptr) continue;
      DIGLOT_NO_UNROLL
      for (int i = threadIdx.x; i < size; i += blockDim.x) {
        if (start + i < 0) continue;
        const Compute sum = sums[field * order.pitch + order.place(i)];
        store_as(output, start + i, arrays_.result_dtype, sum);
      }
    }
  }

  const NormGradients<T>& arrays_;
  uint4* weights_;
  uint4* stages_;
  uint4 inputs_[kAccesses], grads_[kAccesses];  // a held row
  Compute weight_sums_[kColumns] = {};
  Compute bias_sums_[kIsCentered ? kColumns : 1] = {};
};

}  // namespace diglot
