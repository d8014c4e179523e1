// A thread's part of resident rows, for norms' derivatives: weights, sums and results.
#pragma once

#include "diglot/norm/backward_units.cuh"
#include "diglot/reduce/warp_block.cuh"

namespace diglot {

// A thread's part of the rows of its group. If registers suffice, they hold a row from its sums to
// its derivatives, so that the stage is free for a later row sooner.
template <typename Shape, typename T, bool kIsCentered>
class NormPart : public NormUnits<Shape, T> {
 public:
  using Units = NormUnits<Shape, T>;
  using typename Units::Compute;
  using Units::kColumns, Units::kUnit, Units::kUnits;
  using Row = NormRow<Compute, kIsCentered>;
  using RowSums = NormSums<Compute, kIsCentered>;
  // Registers for the sums of a thread's columns, and for a row of its input and gradient.
  static constexpr int kSumRegisters =
      (kIsCentered ? 2 : 1) * kColumns * static_cast<int>(sizeof(Compute) / sizeof(float));
  static constexpr int kRowRegisters = 2 * Shape::kPartBytes / static_cast<int>(sizeof(float));
  static constexpr int kMostRegisters = Shape::kIsWide ? 112 : 96;
  static constexpr bool kHolds = kSumRegisters + kRowRegisters <= kMostRegisters;

  DIGLOT_DEVICE NormPart(const NormRowsOf<Shape>& rows, const NormGradients<T>& arrays)
      : Units(rows, arrays) {
    // A warp's weights are contiguous, so a thread finds all of its own from the first. Those of
    // wide units lie at a constant distance from the stages, which saves registers.
    if constexpr (Shape::kIsWide) {
      weights_ = reinterpret_cast<WeightPart*>(stages_ - Units::kWeightAccesses * Units::kPart);
    } else {
      weights_ = reinterpret_cast<WeightPart*>(this->warp_memory()) +
                 static_cast<int>(threadIdx.x) % kWarpLanes;
    }
  }

  DIGLOT_DEVICE Row statistics(int64_t row) const {
    if (row >= rows_.count) return {};
    return Row::load(arrays_, rows_.offsets(row).array[kStatistics]);
  }

  // Begins to copy the thread's weights to shared memory, in their own type. Absent elements become
  // zeros.
  DIGLOT_DEVICE void load_weights_async() const {
    arrays_.with_weights([&](const auto* weights) {
      using Weight = std::decay_t<decltype(*weights)>;
      constexpr int kBytes = std::min<int>(kUnit * sizeof(Weight), kAccessBytes);
      constexpr int kAtOnce = kBytes / static_cast<int>(sizeof(Weight));
      const bool is_aligned =
          weights != nullptr && reinterpret_cast<uintptr_t>(weights) % kBytes == 0;
      if (is_aligned) {
        const Weight* const from = as_it_is(weights + column_);
        DIGLOT_UNROLL
        for (int u = 0; u < kUnits; ++u) {
          DIGLOT_UNROLL
          for (int first = 0; first < kUnit; first += kAtOnce) {
            const int rest = count_ - element(u, first);
            if (0 < rest && rest < kAtOnce) continue;
            copy_async_part<kBytes>(weight_part(u, first / kAtOnce),
                                    rest > 0 ? from + element(u, first) : as_it_is(weights),
                                    rest > 0 ? kBytes : 0);
          }
        }
        // A copy that the array's end cuts would name bytes beyond it. Only pairs are cut.
        const int last = count_ - 1;
        if constexpr (kUnit == 2) {
          if (last >= 0 && last % element(1) == 0 && last < element(kUnits)) {
            auto* const to = reinterpret_cast<Weight*>(weight_part(last / element(1), 0));
            to[0] = from[last];
            to[1] = convert<Weight>(Compute(0));
          }
        }
        return;
      }
      // Rare, so the code is short.
      DIGLOT_NO_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        DIGLOT_UNROLL
        for (int i = 0; i < kUnit; ++i) {
          auto* const to = reinterpret_cast<Weight*>(weight_part(u, i / kAtOnce)) + i % kAtOnce;
          *to = weights != nullptr && exists(u, i) ? weights[column_ + element(u, i)]
                                                   : convert<Weight>(Compute(weights == nullptr));
        }
      }
    });
  }

  // Converts the thread's weights to the type of the computation, once they have arrived.
  DIGLOT_DEVICE void convert_weights() const {
    if constexpr (sizeof(T) != sizeof(Compute)) {
      if (arrays_.is_weight_wide) return;
      DIGLOT_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        const auto unit = computed(*reinterpret_cast<const Bits*>(weight_part(u, 0)));
        DIGLOT_UNROLL
        for (int part = 0; part < kWeightParts; ++part) {
          WeightPart parts;
          DIGLOT_UNROLL
          for (int i = 0; i < kSummed; ++i) parts[i] = unit[part * kSummed + i];
          store_anywhere(weight_part(u, part), parts);
        }
      }
    }
  }

  // Returns the sums over the thread's part of a row. Adds the row to the sums of the thread's
  // columns.
  DIGLOT_DEVICE RowSums reduce(int64_t number, const Row& row, int stage) {
    const uint4* const from = staged(stage);
    const Source inputs = source(number, from, kInputs), grads = source(number, from, kGrads);
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

  // Stores the derivatives, if there is such a row. All lanes of a warp call it.
  DIGLOT_DEVICE void store(int64_t row, const typename Row::Map& map, int stage) const {
    const bool is_row = row < rows_.count;
    // Where lanes exchange elements, they stay together.
    if (kIsPair ? !__any_sync(kAllLanes, is_row) : !is_row) return;
    T* const output = as_it_is(arrays_.grad_input + rows_.offsets(row).array[kGradInput] + column_);
    const bool adds = is_row && arrays_.grad_sum != nullptr;
    const uint4* const from = staged(stage);
    const Source inputs = source(row, from, kInputs), grads = source(row, from, kGrads);
    const Source addends = adds ? source(row, from, kAddends) : Source{};
    // The row's elements in this warp, from the thread's first on.
    const int most = side() * kColumns - lane() * kUnit;
    const int columns = !is_row ? 0 : count_ < most ? count_ : most;
    Bits before{}, last{};
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
        store_pair(output, columns, u, bits, before, last);
        before = bits;
      } else {
        if (exists(u)) store_vector(output + element(u), result);
      }
    }
    if constexpr (kIsPair) this->store_last(output, columns, last);
  }

  // Stores the group's sums, of all its teams. Overwrites weights and stages. The teams take the
  // units of a field in turns: each adds up a unit's sums over all teams, in order, and stores
  // them.
  DIGLOT_DEVICE void finish() {
    wait_for_copies();
    const bool has_results = arrays_.has_results();
    if (!has_results && arrays_.weight_sums == nullptr && arrays_.bias_sums == nullptr) return;
    const int threads = rows_.teams * rows_.team;
    const int thread = computed_anew(static_cast<int>(threadIdx.x));
    int team = rows_.team, number = rows_.team_of(thread);
    if (Shape::kHasLanes && team < kWarpLanes) {
      // The lanes with the same columns all get the sums of all.
      for (; team < kWarpLanes; team *= 2) {
        for_each_sum([&](int, Compute& sum) { sum += __shfl_xor_sync(kAllLanes, sum, team); });
      }
      number = thread / kWarpLanes;
    }
    const int step =
        Shape::kHasLanes && rows_.team < kWarpLanes ? threads / kWarpLanes : rows_.teams;
    const int member = thread - number * team;
    if (step > 1) {
      auto* const given = reinterpret_cast<WeightPart*>(shared());
      __syncthreads();
      // Sums that are added to zeros need no neighbouring registers while rows are read.
      for_each_access([&](int k, const WeightPart& sums) {
        WeightPart values = {};
        DIGLOT_UNROLL
        for (int e = 0; e < kSummed; ++e) values[e] += sums[e];
        store_anywhere(reinterpret_cast<Compute*>(given + k * threads + thread), values);
      });
      __syncthreads();
      int next = number;
      for_each_access([&](int k, WeightPart& sums) {
        if (k / kWeightParts != next) return;
        const auto* from = given + k * threads + member;
        WeightPart total = {};
        DIGLOT_NO_UNROLL
        for (int i = 0; i < step; ++i, from += team) {
          DIGLOT_UNROLL
          for (int e = 0; e < kSummed; ++e) total[e] += (*from)[e];
        }
        sums = total;
        if (k % kWeightParts == kWeightParts - 1) next += step;
      });
    }
    if (member >= rows_.team) return;
    const bool is_computed = sizeof(T) == sizeof(Compute) || arrays_.is_result_wide;
    int next = number;
    const int count = computed_anew(count_);  // else registers would hold what exists
    DIGLOT_UNROLL
    for (int field = 0; field < (kIsCentered ? 2 : 1); ++field) {
      const auto& sums = field == 0 ? weight_sums_ : bias_sums_;
      Compute* const partial = field == 0 ? arrays_.weight_sums : arrays_.bias_sums;
      void* const output = has_results ? arrays_.results[field] : partial;
      const auto is_own = [&](int u) {
        if (field * kUnits + u != next) return false;
        next += step;
        return element(u) < count && output != nullptr;
      };
      if (has_results && !is_computed) {
        store_results(sums, static_cast<T*>(output), is_own);
      } else if (has_results && !Shape::kIsWide) {
        store_results(sums, static_cast<Compute*>(output), is_own);
      } else {
        auto* const start = static_cast<Compute*>(output);
        store_sums(sums, has_results ? start : start + rows_.group() * rows_.order.pitch,
                   has_results ? kUnit : kSummed, has_results ? kSummed : rows_.order.plane(),
                   is_own);
      }
    }
  }

 private:
  using typename Units::Bits, typename Units::Source;
  using Units::arrays_, Units::column_, Units::count_, Units::rows_, Units::stages_;
  using Units::computed, Units::element, Units::exists, Units::lane, Units::read, Units::shared,
      Units::side, Units::source, Units::staged, Units::store_pair;
  using Units::kInputs, Units::kGrads, Units::kAddends, Units::kIsPair;

  // Sums, or weights, that are stored at once.
  static constexpr int kSummed = std::min<int>(kUnit, kAccessBytes / sizeof(Compute));
  using WeightPart = Vector<Compute, kSummed>;
  static constexpr int kWeightParts = kUnit / kSummed;

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

  // Calls function(k, sums) for accesses of the thread's sums.
  template <typename Function>
  DIGLOT_DEVICE void for_each_access(Function function) {
    constexpr int kAccesses = kUnits * kWeightParts;
    DIGLOT_UNROLL
    for (int k = 0; k < (kIsCentered ? 2 : 1) * kAccesses; ++k) {
      Compute* const from =
          k < kAccesses ? weight_sums_ + k * kSummed : bias_sums_ + (k - kAccesses) * kSummed;
      WeightPart sums;
      DIGLOT_UNROLL
      for (int e = 0; e < kSummed; ++e) sums[e] = from[e];
      function(k, sums);
      DIGLOT_UNROLL
      for (int e = 0; e < kSummed; ++e) from[e] = sums[e];
    }
  }

  // Stores the thread's own units of a field's sums, in whole accesses: neighbouring units at this
  // distance, and so the parts of a unit. An absent column of a pair has room, too.
  template <typename IsOwn>
  DIGLOT_DEVICE void store_sums(const Compute (&sums)[kColumns], Compute* output, int unit_step,
                                int64_t part_step, IsOwn is_own) const {
    output = as_it_is(output) + column_ / kUnit * unit_step;  // not from the beginning
    DIGLOT_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      if (!is_own(u)) continue;
      Compute* address = output + u * side() * unit_step;
      DIGLOT_UNROLL
      for (int part = 0; part < kWeightParts; ++part, address += part_step) {
        Vector<Compute, kSummed> values = {};
        if (rows_.accumulates) values = load_vector<Compute, kSummed>(address);
        DIGLOT_UNROLL
        for (int e = 0; e < kSummed; ++e) values[e] += sums[u * kUnit + part * kSummed + e];
        store_anywhere(address, values);
      }
    }
  }

  // Stores the thread's own units of a field's sums, which are gradients. Wide units find them
  // aligned.
  template <typename Result, typename IsOwn>
  DIGLOT_DEVICE void store_results(const Compute (&sums)[kColumns], Result* output,
                                   IsOwn is_own) const {
    output = as_it_is(output) + column_;  // else registers would hold the sum from the beginning
    DIGLOT_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      if (!is_own(u)) continue;
      Vector<Result, kUnit> values;
      DIGLOT_UNROLL
      for (int i = 0; i < kUnit; ++i) values[i] = convert<Result>(sums[u * kUnit + i]);
      if constexpr (Shape::kIsWide) {
        store_vector(output + element(u), values);
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kUnit; ++i) {
          if (exists(u, i)) output[element(u, i)] = values[i];
        }
      }
    }
  }

  WeightPart* weights_;
  Bits inputs_[kUnits], grads_[kUnits];  // a held row
  Compute weight_sums_[kColumns] = {};
  Compute bias_sums_[kColumns] = {};  // unused by RMS norm
};

}  // namespace diglot
