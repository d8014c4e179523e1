// A thread's units of resident rows, for norms' derivatives: from memory through stages of shared
// memory to registers, and back.
#pragma once

#include "diglot/norm/backward_columns.cuh"

namespace diglot {

// Rows arrive in stages of shared memory. Of wide units a thread reads only what it copied itself.
// Of narrow ones a row's lanes copy aligned accesses for each other, and read the row from them
// wherever it starts.
template <typename Shape, typename T>
class NormUnits : public NormColumns<Shape, T> {
 public:
  using Columns = NormColumns<Shape, T>;
  using Columns::kColumns, Columns::kUnit, Columns::kUnits;
  using Compute = compute_t<T>;
  // 16-byte accesses for the weights of one access to the input: weights have the type of the
  // computation.
  static constexpr int kWeightAccesses = sizeof(Compute) / sizeof(T);
  // The arrays of a stage, one after the other.
  enum { kInputs, kGrads, kAddends, kReadArrays };

  DIGLOT_DEVICE NormUnits(const NormRowsOf<Shape>& rows, const NormGradients<T>& arrays)
      : Columns(rows), arrays_(arrays) {
    const int number = static_cast<int>(threadIdx.x) % kWarpLanes;
    stages_ = warp_memory() +
              (Shape::kIsWide ? number : rows.team_of(number) * (side_accesses() + kLine)) +
              kWeightAccesses * kPart;
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
    uint4* const to = staged(stage);
    copy_part(to + kInputs * pitch(), arrays_.input, starts, kInput);
    copy_part(to + kGrads * pitch(), arrays_.grad_output, starts, kGradOutput);
  }
  DIGLOT_DEVICE void load_addends_async(int64_t row, int stage) const {
    if (row >= rows_.count || arrays_.grad_sum == nullptr) return;
    uint4* const to = staged(stage) + kAddends * pitch();
    copy_part(to, arrays_.grad_sum, rows_.offsets(row), kGradSum);
  }
  DIGLOT_DEVICE void meet_lanes() const {
    if constexpr (!Shape::kIsWide) __syncwarp();
  }

 protected:
  using Columns::column_, Columns::count_, Columns::rows_;
  using Columns::element, Columns::exists, Columns::lane, Columns::side;

  static constexpr int kPart = Shape::kAccesses * kWarpLanes;  // a warp's accesses to an array
  static constexpr int kLine = kNormLineBytes / kAccessBytes;
  static constexpr int kUnitBytes = Shape::template kUnitBytes<T>;
  static constexpr bool kIsPair = !Shape::kIsWide && kUnit == 2;
  // A unit in registers.
  using Bits = std::conditional_t<Shape::kIsWide, uint4,
                                  std::conditional_t<kUnitBytes == 8, uint64_t, uint32_t>>;

  // Accesses of the lanes that share a row, without the extra line of narrow units.
  DIGLOT_DEVICE int side_accesses() const { return Shape::kAccesses * side(); }
  DIGLOT_DEVICE int pitch() const { return Shape::kIsWide ? kPart : rows_.pitch; }
  DIGLOT_DEVICE int warp_accesses() const {
    return kWeightAccesses * kPart + rows_.stages * rows_.arrays * pitch();
  }
  // Shared memory: for each warp its weights, and behind them the stages.
  DIGLOT_DEVICE static uint4* shared() {
    alignas(kNormLineBytes) extern __shared__ uint4 staged_rows[];
    return staged_rows;
  }
  DIGLOT_DEVICE uint4* warp_memory() const {
    return shared() + static_cast<int>(threadIdx.x) / kWarpLanes * warp_accesses();
  }
  // A stage. Its place is computed once, not at each access.
  DIGLOT_DEVICE uint4* staged(int stage) const {
    return stages_ + computed_anew(stage * rows_.arrays * pitch());
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
      const int rest = count_ + lane * kUnit, most = side * kColumns;
      const int columns = rest < most ? rest : most;
      const int end = skipped + columns * static_cast<int>(sizeof(T));
      const char* const line = as_it_is(reinterpret_cast<const char*>(first) - skipped);
      // The accesses with the words that units are read from. Behind the last element are zeros.
      const int units = (columns + kUnit - 1) / kUnit + (kIsPair ? 1 : 0);
      const int words_end = skipped - skipped % kUnitBytes + units * kUnitBytes;
      const int first_access = skipped / kAccessBytes;
      const int end_access = (words_end + kAccessBytes - 1) / kAccessBytes;
      // A copy of 16 bytes needs memory for all of them. Around the array's rows there may be none,
      // so what holds an end of the array is copied element by element.
      const auto* const first_row =
          reinterpret_cast<const char*>(array + rows_.offsets(0).array[which]);
      const auto* const behind = reinterpret_cast<const char*>(
          array + rows_.offsets(rows_.count - 1).array[which] + rows_.n);
      const int lowest = first_row > line ? static_cast<int>(first_row - line) : 0;
      const int most_bytes = end_access * kAccessBytes;
      const int highest = behind - line < most_bytes ? static_cast<int>(behind - line) : most_bytes;
      const auto copy = [&](int number) {
        const int begin = number * kAccessBytes, left = end - begin;
        if (number >= end_access) return;
        copy_async_part(to + number, line + begin,
                        left < 0              ? 0
                        : left < kAccessBytes ? left
                                              : kAccessBytes);
      };
      if (lowest <= first_access * kAccessBytes && highest == most_bytes) {
        if constexpr (Shape::kHasLanes) {
          DIGLOT_NO_UNROLL
          for (int number = first_access + lane; number < end_access; number += side) copy(number);
        } else {
          DIGLOT_UNROLL
          for (int a = 0; a <= Shape::kAccesses; ++a) copy(first_access + a * kWarpLanes + lane);
        }
        return;
      }
      DIGLOT_NO_UNROLL
      for (int number = first_access + lane; number < end_access; number += side) {
        const int begin = number * kAccessBytes, next = begin + kAccessBytes;
        if (begin >= lowest && next <= highest) {
          copy(number);
          continue;
        }
        DIGLOT_NO_UNROLL
        for (int i = begin; i < next; i += sizeof(T)) {
          T element{};
          if (i >= skipped && i < end) element = *reinterpret_cast<const T*>(line + i);
          *reinterpret_cast<T*>(reinterpret_cast<char*>(to) + i) = element;
        }
      }
    }
  }

  // Where the thread reads its units of a row in shared memory. `shift`: bits of the first word
  // that precede a pair.
  struct Source {
    const char* address;
    int shift;
  };
  DIGLOT_DEVICE Source source(int64_t row, const uint4* stage, int array) const {
    const char* const from = reinterpret_cast<const char*>(stage + array * pitch());
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
    if (!Shape::kIsWide && !exists(u)) return Bits{};  // no copy writes there
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
  // thread's own previous unit. All lanes of a warp call it. `last`: the unit whose word the row's
  // last element begins, for store_last.
  DIGLOT_DEVICE void store_pair(T* output, int columns, int u, Bits bits, Bits before,
                                Bits& last) const {
    const int lane = this->lane(), side = this->side(), within = within_word(output);
    const uint32_t previous =
        __shfl_sync(kAllLanes, lane == side - 1 ? before : bits, lane - 1, side);
    const uint32_t word = within == 0 ? bits : word_between(previous, bits, 16);
    const bool is_first = u == 0 && lane == 0 && within == 1;
    if (is_first && columns > 0) *reinterpret_cast<uint16_t*>(output) = static_cast<uint16_t>(bits);
    if (!is_first && element(u) < columns - 1 + within) {
      *reinterpret_cast<uint32_t*>(output + element(u) - within) = word;
    }
    if (element(u) == columns - 1 - within) last = bits;
  }
  // Stores the row's last element if it is the first of its word, once the pairs are stored.
  DIGLOT_DEVICE void store_last(T* output, int columns, Bits last) const {
    const int within = within_word(output), distance = columns - 1 - within;
    if (distance < 0 || distance % element(1) != 0) return;
    reinterpret_cast<uint16_t*>(output)[columns - 1] = static_cast<uint16_t>(last >> 16 * within);
  }
  // Elements of the row's first word that precede the row, and of a unit's word that precede it.
  DIGLOT_DEVICE static int within_word(const T* output) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(output) % kUnitBytes / sizeof(T));
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

  const NormGradients<T>& arrays_;
  uint4* stages_;
};

}  // namespace diglot
