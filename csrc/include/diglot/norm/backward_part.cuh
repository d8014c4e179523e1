// A thread's part of resident rows, for norms' derivatives: stages, sums and stores.
#pragma once

#include "diglot/norm/backward_columns.cuh"
#include "diglot/reduce/warp_block.cuh"

namespace diglot {

// A thread's part of the rows of its group. Rows arrive in stages of shared memory. Of wide units a
// thread reads only what it copied itself. Of narrow ones a row's lanes copy aligned accesses for
// each other, and read the row from them wherever it starts. If registers suffice, they hold a row
// from its sums to its derivatives, so that the stage is free for a later row sooner.
template <typename Shape, typename T, bool kIsCentered>
class NormPart : public NormColumns<Shape, T> {
 public:
  using Columns = NormColumns<Shape, T>;
  using Columns::kColumns, Columns::kUnit, Columns::kUnits;
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
  static constexpr int kMostRegisters = Shape::kIsWide ? 112 : 96;
  static constexpr bool kHolds = kSumRegisters + kRowRegisters <= kMostRegisters;
  // The arrays of a stage, one after the other.
  enum { kInputs, kGrads, kAddends, kReadArrays };

  DIGLOT_DEVICE NormPart(const NormRows& rows, const NormGradients<T>& arrays)
      : Columns(rows), arrays_(arrays) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int number = static_cast<int>(threadIdx.x) % kWarpLanes;
    // A warp's weights and stages are contiguous, so a thread finds all of its units from the
    // first.
    uint4* const weights = shared() + warp * warp_accesses();
    weights_ = reinterpret_cast<WeightPart*>(weights) + number;
    stages_ = weights + kWeightAccesses * kPart +
              (Shape::kIsWide ? number : number / side() * (side_accesses() + kLine));
  }

  DIGLOT_DEVICE Row statistics(int64_t row) const {
    if (row >= rows_.count) return {};
    return Row::load(arrays_, rows_.offsets(row).array[kStatistics]);
  }

  // Zeros where no copy will write.
  DIGLOT_DEVICE void clear() const {
    if constexpr (Shape::kIsWide) {
      DIGLOT_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        if (exists(u)) continue;
        for (int array = 0; array < rows_.stages * rows_.arrays; ++array) {
          stages_[array * kPart + u * kWarpLanes] = uint4{};
        }
      }
    }
  }

  // Begins to copy the thread's part of a row to a stage: first the inputs of its sums, then in
  // load_addends_async the rest that its derivatives need. The copies have arrived when
  // wait_for_copies_before and meet_lanes return. Lanes meet before a stage gets another row, too.
  DIGLOT_DEVICE void load_async(int64_t row, int stage) const {
    if (row >= rows_.count) return;
    const auto starts = rows_.offsets(row);
    copy_part(staged(stage, kInputs), arrays_.input, starts, kInput);
    copy_part(staged(stage, kGrads), arrays_.grad_output, starts, kGradOutput);
  }
  DIGLOT_DEVICE void load_addends_async(int64_t row, int stage) const {
    if (row >= rows_.count || arrays_.grad_sum == nullptr) return;
    copy_part(staged(stage, kAddends), arrays_.grad_sum, rows_.offsets(row), kGradSum);
  }
  DIGLOT_DEVICE void meet_lanes() const {
    if constexpr (!Shape::kIsWide) __syncwarp();
  }

  // Stages the thread's weights in shared memory; absent elements become zeros. Calls meanwhile()
  // while the loads are in flight.
  template <typename Function>
  DIGLOT_DEVICE void load_weights(Function meanwhile) const {
    arrays_.with_weights([&](const auto* weights) {
      using Weight = std::decay_t<decltype(*weights)>;
      Vector<Weight, kUnit> loaded[kUnits];
      const bool is_aligned = Shape::kIsWide && elements_to_alignment(weights) == 0;
      DIGLOT_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        loaded[u] = {};
        if (weights != nullptr && is_aligned) {
          if (exists(u)) load_parts(loaded[u], weights + column_ + element(u));
        } else {
          DIGLOT_UNROLL
          for (int i = 0; i < kUnit; ++i) {
            if (!exists(u, i)) continue;
            loaded[u][i] =
                weights == nullptr ? convert<Weight>(Compute(1)) : weights[column_ + element(u, i)];
          }
        }
      }
      meanwhile();
      DIGLOT_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        DIGLOT_UNROLL
        for (int part = 0; part < kWeightParts; ++part) {
          WeightPart computed;
          DIGLOT_UNROLL
          for (int i = 0; i < kSummed; ++i) {
            computed[i] = convert<Compute>(loaded[u][part * kSummed + i]);
          }
          store_anywhere(weight_part(u, part), computed);
        }
      }
    });
  }

  // Returns the sums over the thread's part of a row. Adds the row to the sums of the thread's
  // columns.
  DIGLOT_DEVICE RowSums reduce(int64_t number, const Row& row, int stage) {
    const Source inputs = source(number, stage, kInputs), grads = source(number, stage, kGrads);
    RowSums sums = RowSums::none();
    DIGLOT_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      const Bits input = read(inputs, u), gradient = read(grads, u);
      if constexpr (kHolds) inputs_[u] = input, grads_[u] = gradient;
      visit(input, gradient, u, [&](int i, Compute grad, Compute x, Compute weight) {
        const int k = u * kUnit + i;
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

  // Stores the derivatives. All lanes of a warp call it.
  DIGLOT_DEVICE void store(int64_t row, const typename Row::Map& map, int stage) const {
    T* const output = as_it_is(arrays_.grad_input + rows_.offsets(row).array[kGradInput] + column_);
    const bool adds = arrays_.grad_sum != nullptr;
    const Source inputs = source(row, stage, kInputs), grads = source(row, stage, kGrads);
    const Source addends = adds ? source(row, stage, kAddends) : Source{};
    const int most = side() * kColumns - lane() * kUnit;
    const int columns = row >= rows_.count ? 0 : count_ < most ? count_ : most;
    Bits before{};
    DIGLOT_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      const Bits input = kHolds ? inputs_[u] : read(inputs, u);
      const Bits gradient = kHolds ? grads_[u] : read(grads, u);
      Compute values[kUnit];
      visit(input, gradient, u, [&](int i, Compute grad, Compute x, Compute weight) {
        values[i] = map(grad * weight, x);
      });
      if (adds) {
        const auto added = computed(read(addends, u));
        DIGLOT_UNROLL
        for (int i = 0; i < kUnit; ++i) values[i] += added[i];
      }
      Vector<T, kUnit> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kUnit; ++i) result[i] = convert<T>(values[i]);
      if constexpr (kIsPair) {
        Bits bits;
        memcpy(&bits, &result, sizeof(bits));
        store_pair(output, columns, u, bits, before);
        before = bits;
      } else {
        if (element(u) < columns) store_vector(output + element(u), result);
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
    if (thread >= rows_.team) return;
    DIGLOT_UNROLL
    for (int field = 0; field < (kIsCentered ? 2 : 1); ++field) {
      const auto& sums = field == 0 ? weight_sums_ : bias_sums_;
      if (!has_results) {
        Compute* const output = field == 0 ? arrays_.weight_sums : arrays_.bias_sums;
        if (output != nullptr) store_sums(sums, output + group() * rows_.order.pitch);
      } else if (void* const output = arrays_.results[field]; output == nullptr) {
        continue;
      } else if (sizeof(T) == sizeof(Compute) || !arrays_.is_result_wide) {
        store_results(sums, static_cast<T*>(output));
      } else {
        store_results(sums, static_cast<Compute*>(output));
      }
    }
  }

 private:
  using Columns::column_, Columns::count_, Columns::rows_;
  using Columns::element, Columns::exists, Columns::group, Columns::lane, Columns::side;

  static constexpr int kPart = Shape::kAccesses * kWarpLanes;  // a warp's accesses to an array
  static constexpr int kLine = kNormLineBytes / kAccessBytes;
  static constexpr int kUnitBytes = Shape::template kUnitBytes<T>;
  static constexpr bool kIsPair = !Shape::kIsWide && kUnit == 2;
  // A unit in registers.
  using Bits = std::conditional_t<Shape::kIsWide, uint4,
                                  std::conditional_t<kUnitBytes == 8, uint64_t, uint32_t>>;
  // Sums, or weights, that are stored at once.
  static constexpr int kSummed = std::min<int>(kUnit, kAccessBytes / sizeof(Compute));
  using WeightPart = Vector<Compute, kSummed>;
  static constexpr int kWeightParts = kUnit / kSummed;

  // Accesses of the lanes that share a row, without the line that narrow units take besides.
  DIGLOT_DEVICE int side_accesses() const { return Shape::kAccesses * side(); }
  DIGLOT_DEVICE int stage_accesses() const {
    return kPart + (Shape::kIsWide ? 0 : kLine * (kWarpLanes / side()));
  }
  DIGLOT_DEVICE int warp_accesses() const {
    return kWeightAccesses * kPart + rows_.stages * rows_.arrays * stage_accesses();
  }
  // Shared memory: for each warp its weights, and behind them the stages.
  DIGLOT_DEVICE static uint4* shared() {
    alignas(kNormLineBytes) extern __shared__ uint4 staged_rows[];
    return staged_rows;
  }
  DIGLOT_DEVICE uint4* staged(int stage, int array) const {
    return stages_ + (stage * rows_.arrays + array) * stage_accesses();
  }

  // The first element of the lanes that share a row.
  DIGLOT_DEVICE const T* side_start(const T* array, int64_t offset) const {
    return array + offset + column_ - lane() * kUnit;
  }
  DIGLOT_DEVICE static int since_line(const T* address) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kNormLineBytes);
  }

  template <typename Starts>
  DIGLOT_DEVICE void copy_part(uint4* to, const T* array, const Starts& starts, int which) const {
    const int64_t offset = starts.array[which];
    if constexpr (Shape::kIsWide) {
      const T* const from = as_it_is(array + offset + column_);
      DIGLOT_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        if (exists(u)) copy_async(to + u * kWarpLanes, from + element(u));
      }
    } else {
      const T* const first = side_start(array, offset);
      const int skipped = since_line(first), side = this->side(), lane = this->lane();
      const int columns = count_ + lane * kUnit, most = side * kColumns;
      const int end = skipped + (columns < most ? columns : most) * static_cast<int>(sizeof(T));
      const char* const line = as_it_is(reinterpret_cast<const char*>(first) - skipped);
      const auto* const lowest =
          reinterpret_cast<const char*>(array + rows_.starts.start.array[which]);
      const auto copy = [&](int number, bool may_be_first) {
        const int begin = number * kAccessBytes;
        if (begin + kAccessBytes <= skipped || number >= side_accesses() + kLine) return;
        if (may_be_first && line + begin < lowest) {  // before the first row there may be no memory
          DIGLOT_NO_UNROLL
          for (int i = skipped; i < begin + kAccessBytes; i += sizeof(T)) {
            T element{};
            if (i < end) element = *reinterpret_cast<const T*>(line + i);
            *reinterpret_cast<T*>(reinterpret_cast<char*>(to) + i) = element;
          }
        } else {
          const int left = end - begin < kAccessBytes ? end - begin : kAccessBytes;
          copy_async_part(to + number, line + begin, left < 0 ? 0 : left);
        }
      };
      if constexpr (Shape::kHasLanes) {
        DIGLOT_NO_UNROLL
        for (int number = lane; number < side_accesses() + kLine; number += side) {
          copy(number, true);
        }
      } else {
        DIGLOT_UNROLL
        for (int a = 0; a <= Shape::kAccesses; ++a) copy(a * kWarpLanes + lane, a == 0);
      }
    }
  }

  // Where the thread reads its units of a row in shared memory. `shift`: bits of the first word
  // that precede a pair.
  struct Source {
    const char* address;
    int shift;
  };
  DIGLOT_DEVICE Source source(int64_t row, int stage, int array) const {
    const char* const from = reinterpret_cast<const char*>(staged(stage, array));
    if constexpr (Shape::kIsWide) return {from, 0};
    const auto starts = rows_.offsets(row);
    const T* const first = array == kInputs ? side_start(arrays_.input, starts.array[kInput])
                           : array == kGrads
                               ? side_start(arrays_.grad_output, starts.array[kGradOutput])
                               : side_start(arrays_.grad_sum, starts.array[kGradSum]);
    const int skipped = since_line(first), into_unit = skipped % kUnitBytes;
    return {from + (skipped - into_unit) + lane() * kUnitBytes, 8 * into_unit};
  }
  DIGLOT_DEVICE Bits read(const Source& from, int u) const {
    const char* const address = from.address + element(u) * static_cast<int>(sizeof(T));
    if constexpr (kIsPair) {
      const auto* const words = reinterpret_cast<const uint32_t*>(address);
      return word_between(words[0], words[1], from.shift);
    } else if constexpr (Shape::kIsWide) {
      return *reinterpret_cast<const uint4*>(from.address + u * kWarpLanes * kUnitBytes);
    } else {
      return *reinterpret_cast<const Bits*>(address);
    }
  }

  // Stores elements of 2 bytes by words, wherever the row starts. The words of a row that starts
  // within one have an element of the unit before, which is the previous lane's. `before`: the
  // thread's own previous unit. All lanes of a warp call it.
  DIGLOT_DEVICE void store_pair(T* output, int columns, int u, Bits bits, Bits before) const {
    const int lane = this->lane(), side = this->side();
    // Elements of the row's first word that precede the row, and of a unit's word that precede it.
    const int within =
        static_cast<int>(reinterpret_cast<uintptr_t>(output) % kUnitBytes / sizeof(T));
    const uint32_t previous =
        __shfl_sync(kAllLanes, lane == side - 1 ? before : bits, lane - 1, side);
    const uint32_t word = within == 0 ? bits : word_between(previous, bits, 16);
    const auto store_one = [&](int i) {
      reinterpret_cast<uint16_t*>(output)[element(u, i)] = static_cast<uint16_t>(bits >> 16 * i);
    };
    const bool is_first = u == 0 && lane == 0 && within == 1;
    if (is_first && columns > 0) store_one(0);
    if (!is_first && element(u) < columns - 1 + within) {
      *reinterpret_cast<uint32_t*>(output + element(u) - within) = word;
    }
    // The last element, if it is the first of its word.
    if (element(u) == columns - 1 - within) store_one(within);
  }

  // Loads all elements of a vector by accesses of 16 bytes.
  template <typename U>
  DIGLOT_DEVICE static void load_parts(Vector<U, kUnit>& to, const U* from) {
    constexpr int kAtOnce = kAccessBytes / static_cast<int>(sizeof(U));
    DIGLOT_UNROLL
    for (int first = 0; first < kUnit; first += kAtOnce) {
      const uint4 bits = *reinterpret_cast<const uint4*>(from + first);
      memcpy(&to[first], &bits, sizeof(bits));
    }
  }

  // The elements of a unit, in the type of the computation.
  DIGLOT_DEVICE static Vector<Compute, kUnit> computed(Bits bits) {
    if constexpr (Shape::kIsWide) {
      return unpack_computed<T>(bits);
    } else {
      uint4 access{};
      memcpy(&access, &bits, sizeof(bits));
      const auto elements = unpack_computed<T>(access);
      Vector<Compute, kUnit> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kUnit; ++i) result[i] = elements[i];
      return result;
    }
  }

  DIGLOT_DEVICE Compute* weight_part(int u, int part) const {
    return reinterpret_cast<Compute*>(weights_ + (u * kWeightParts + part) * kWarpLanes);
  }

  // Calls function(i, grad, x, weight) for the elements of a unit; absent ones are zeros.
  template <typename Function>
  DIGLOT_DEVICE void visit(Bits input_bits, Bits grad_bits, int u, Function function) const {
    const auto inputs = computed(input_bits), grads = computed(grad_bits);
    DIGLOT_UNROLL
    for (int part = 0; part < kWeightParts; ++part) {
      const auto weights = load_vector<Compute, kSummed>(weight_part(u, part));
      DIGLOT_UNROLL
      for (int k = 0; k < kSummed; ++k) {
        const int i = part * kSummed + k;
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

  // Stores the thread's sums of a field. An absent column of a pair has room, too.
  DIGLOT_DEVICE void store_sums(const Compute (&sums)[kColumns], Compute* output) const {
    output = as_it_is(output + column_ / kWeightParts);
    DIGLOT_UNROLL
    for (int part = 0; part < kWeightParts; ++part) {
      DIGLOT_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        if (!exists(u)) continue;
        Compute* const address = output + element(u) / kWeightParts;
        Vector<Compute, kSummed> values = {};
        if (rows_.accumulates) values = load_vector<Compute, kSummed>(address);
        DIGLOT_UNROLL
        for (int e = 0; e < kSummed; ++e) values[e] += sums[u * kUnit + part * kSummed + e];
        store_anywhere(address, values);
      }
      output += rows_.order.plane();
    }
  }

  // Stores the thread's sums of a field, which are gradients.
  template <typename Result>
  DIGLOT_DEVICE void store_results(const Compute (&sums)[kColumns], Result* output) const {
    const bool is_aligned = Shape::kIsWide && elements_to_alignment(output) == 0;
    output += column_;
    DIGLOT_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      Vector<Result, kUnit> values;
      DIGLOT_UNROLL
      for (int i = 0; i < kUnit; ++i) values[i] = convert<Result>(sums[u * kUnit + i]);
      if (is_aligned) {
        if (exists(u)) store_vector(output + element(u), values);
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kUnit; ++i) {
          if (exists(u, i)) output[element(u, i)] = values[i];
        }
      }
    }
  }

  const NormGradients<T>& arrays_;
  WeightPart* weights_;
  uint4* stages_;
  Bits inputs_[kUnits], grads_[kUnits];  // a held row
  Compute weight_sums_[kColumns] = {};
  Compute bias_sums_[kColumns] = {};  // unused by RMS norm
};

}  // namespace diglot
