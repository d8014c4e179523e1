// A thread's part of a tile of a row, in registers: reduced, mapped and stored. Twin of
// triton_ops/lib/rows/tile.py.
#pragma once

#include <type_traits>
#include <utility>

#include "diglot/reduce/warp_block.cuh"
#include "diglot/rows/tile_loads.cuh"

namespace diglot {

template <typename Shape, typename Operation, typename I, int kInputs, int kArrays>
class RowTile : public RowTileLoads<Shape, Operation, I, kInputs, kArrays> {
 public:
  using Base = RowTileLoads<Shape, Operation, I, kInputs, kArrays>;
  using Base::Base;
  using Base::kAccesses, Base::kAlong, Base::kElements, Base::kHeld, Base::kRows;
  using typename Base::Access, typename Base::Range;

  // The operation of each of the thread's rows.
  DIGLOT_DEVICE auto operations_for_rows(const Operation& operation) const {
    return operations_for_rows(operation, std::make_integer_sequence<int, kRows>{});
  }

  using State = typename Operation::State;
  DIGLOT_DEVICE static PerRow<State, kRows> none() {
    PerRow<State, kRows> states;
    DIGLOT_UNROLL
    for (int row = 0; row < kRows; ++row) states.values[row] = State::none();
    return states;
  }

  // The states of the thread's rows, of the elements in registers.
  DIGLOT_DEVICE PerRow<State, kRows> reduce(const PerRow<Operation, kRows>& operations,
                                            const Range& range) const {
    PerRow<State, kRows> states;
    int count = 0;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      DIGLOT_UNROLL
      for (int i = 0; i < kAlong; ++i) count += exists(range, a, i);
    }
    DIGLOT_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const auto visit = [&](auto function) {
        DIGLOT_UNROLL
        for (int a = 0; a < kAccesses; ++a) {
          visit_access(function, range, a, row);
        }
      };
      states.values[row] = operations.values[row].reduce(visit, count);
    }
    return states;
  }

  // The state of the elements that the thread's lanes or block hold.
  DIGLOT_DEVICE State combine_in_team(const State& state) {
    if constexpr (Shape::kTeam == Team::kLanes) {
      return lanes_reduce(state, place_.threads);
    } else {
      return block_reduce_in_turn<Shape::kThreads / kWarpLanes>(state, turn_++);
    }
  }
  DIGLOT_DEVICE State reduce_in_team(const Operation& operation, const Range& range) {
    if constexpr (Operation::kReducesTogether) {
      return reduce_together(operation, range);
    } else {
      return combine_in_team(reduce({{operation}}, range).values[0]);
    }
  }
  DIGLOT_DEVICE State reduce_together(const Operation& operation, const Range& range) {
    const auto visit = [&](auto function) { visit_all(function, range); };
    if constexpr (Shape::kTeam == Team::kLanes) {
      return operation.reduce_together(visit, range.elements(), [&](auto x) {
        return lanes_sum(Sums<decltype(x), 1>{{x}}, place_.threads).values[0];
      });
    } else {
      return operation.reduce_together(visit, range.elements(), [&](auto x) {
        const Sums<decltype(x), 1> sum{{x}};
        return block_reduce_in_turn<Shape::kThreads / kWarpLanes>(sum, turn_++).values[0];
      });
    }
  }

  // What an operation that replaces elements puts in their place.
  struct Replaced {
    compute_t<I> values[kAccesses][kElements];
  };
  DIGLOT_DEVICE State reduce_replacing(const Operation& operation, const Range& range,
                                       Replaced& replaced) const {
    const auto visit = [&](auto function) { visit_all(function, range); };
    return operation.reduce_replacing(visit, [&](auto function) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        if (!is_used(range, a)) break;
        const Accesses accesses = held_accesses(a);
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) replaced.values[a][i] = call(function, accesses, i);
      }
    });
  }
  template <typename Map, typename O>
  DIGLOT_DEVICE void store_replaced(const Map& map, const Replaced& replaced, const Range& range,
                                    O* output) const {
    O* const start = output + starts_.array[0] + offset(range, 0);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (!is_used(range, a)) break;
      Vector<O, kElements> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) result[i] = convert<O>(map(replaced.values[a][i]));
      store_access(start, range, a, result);
    }
  }

  // Begins to copy the parameters that the map needs for a tile to shared memory, `offset` bytes
  // from its start, if the launcher found room. wait_for_params and store_mapped follow.
  DIGLOT_DEVICE auto stage_params(const Operation& operation, const Range& range,
                                  int offset) const {
    if constexpr (may_stage_params<Shape, Operation, I>()) {
      using Staged = typename Operation::Staged;
      if (!rows_.stages_params) return Staged{};
      return operation.stage_params([&](auto* array) {
        return stage_array<Shape, I>(
            array, offset, range.first, [&](int a) { return position(a, 0); },
            [&](int a) { return exists(range, a, 0); });
      });
    } else {
      return NothingStaged{};
    }
  }
  // Begins to bring them to the L2 cache. Few blocks do: all ask for the same lines.
  DIGLOT_DEVICE void prefetch_params(const Operation& operation, const Range& range) const {
    if constexpr (Operation::kStagesParams && Shape::kIsWide) {
      if (gridDim.x > kFewBlocks) return;
      operation.stage_params([&](auto* array) {
        DIGLOT_UNROLL
        for (int a = 0; a < kAccesses; ++a) {
          if (array != nullptr && is_whole(range, a)) {
            prefetch(array + (range.first + position(a, 0) - skipped_));
          }
        }
        return array;
      });
    }
  }
  DIGLOT_DEVICE void wait_for_params() const {
    if constexpr (may_stage_params<Shape, Operation, I>()) {
      if (rows_.stages_params) wait_for_copies();
    }
  }
  template <typename Staged, typename O>
  DIGLOT_DEVICE void store_mapped(const Operation& operation, const State& total,
                                  const Staged& params, const Range& range, O* output) const {
    const auto map = operation_for_row(operation, 0).map(total);
    if constexpr (!std::is_same_v<Staged, NothingStaged>) {
      if (rows_.stages_params) {
        const auto staged = map.staged(params);
        return store(PerRow<std::decay_t<decltype(staged)>, 1>{{staged}}, range, output);
      }
    }
    store(PerRow<std::decay_t<decltype(map)>, 1>{{map}}, range, output);
  }

  // output = map(inputs...), where maps.values[row] maps each of the thread's rows.
  template <typename Maps, typename O>
  DIGLOT_DEVICE void store(const Maps& maps, const Range& range, O* output) const {
    constexpr int kAtOnce = Shape::kIsWide ? kElements : 1;
    const auto result_of = [&](int a) {
      const Accesses accesses = held_accesses(a);
      Vector<O, kElements> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; i += kAtOnce) {
        const auto& map = maps.values[i / kAlong];
        const auto convert_all = [&](auto function) {
          DIGLOT_UNROLL
          for (int j = 0; j < kAtOnce; ++j) result[i + j] = convert<O>(function(j));
        };
        if constexpr (Operation::kMapsPositions) {
          constexpr bool kIsStaged = std::decay_t<decltype(map)>::kIsStaged;
          const int64_t element = (kIsStaged ? 0 : range.first) + position(a, i) - skipped_;
          const auto function = [&] {
            if constexpr (Shape::kIsPeeled) {
              return map.template around_position<kAtOnce>(element, rows_.n);
            } else {
              // Absent elements take the parameters of the first, so that no branch is needed.
              return map.template at_position<kAtOnce>(exists(range, a, i) ? element : 0);
            }
          }();
          convert_all([&](int j) {
            return call([&](auto... x) { return function(j, x...); }, accesses, i + j);
          });
        } else {
          convert_all([&](int j) { return call(maps.values[(i + j) / kAlong], accesses, i + j); });
        }
      }
      return result;
    };
    if constexpr (Shape::kIsChunked) {
      step_through(range, output + starts_.array[0], 0, [&](int a, bool exists, O* address) {
        if (exists) store_vector(address, result_of(a));
      });
    } else {
      O* const start = output + starts_.array[0] + offset(range, 0);
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        // Without this branch a block's accesses to parameters are in flight together.
        constexpr bool kIsAtOnce = Operation::kMapsPositions && Shape::kTeam != Team::kLanes;
        if (!kIsAtOnce && !is_used(range, a)) break;
        store_access(start, range, a, result_of(a));
      }
    }
  }

  // The joined inputs, which have the output's layout.
  DIGLOT_DEVICE void store_joined(const Range& range, I* output) const {
    I* const start = output + starts_.array[0] + offset(range, 0);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (!is_used(range, a)) break;
      store_access(start, range, a, held_[0][a].get());
    }
  }

 private:
  using Base::exists, Base::is_used, Base::is_whole, Base::offset, Base::position, Base::step,
      Base::step_through;
  using Base::held_, Base::n_, Base::place_, Base::rows_, Base::skipped_, Base::starts_;

  static constexpr unsigned kFewBlocks = 132;  // about one for each multiprocessor

  unsigned turn_ = 0;  // of block_reduce_in_turn

  template <typename O>
  DIGLOT_DEVICE void store_access(O* start, const Range& range, int a,
                                  const Vector<O, kElements>& access) const {
    if (Shape::kIsWide && is_whole(range, a)) {
      store_vector(start + step(a, 0, 0), access);
    } else if (Shape::kWidth != Width::kWide) {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (exists(range, a, i)) start[step(a, i, 0)] = access[i];
      }
    }
  }

  // One access of each array in registers.
  struct Accesses {
    Access inputs[kHeld];
  };
  DIGLOT_DEVICE Accesses held_accesses(int a) const {
    Accesses accesses;
    DIGLOT_UNROLL
    for (int k = 0; k < kHeld; ++k) accesses.inputs[k] = held_[k][a].get();
    return accesses;
  }
  template <typename Function>
  DIGLOT_DEVICE static auto call(const Function& function, const Accesses& accesses, int i) {
    return call(function, accesses, i, std::make_integer_sequence<int, kHeld>{});
  }
  template <typename Function, int... kInput>
  DIGLOT_DEVICE static auto call(const Function& function, const Accesses& accesses, int i,
                                 std::integer_sequence<int, kInput...>) {
    return function(convert<compute_t<I>>(accesses.inputs[kInput][i])...);
  }
  template <typename Function>
  DIGLOT_DEVICE void visit_all(Function& function, const Range& range) const {
    static_assert(kRows == 1);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (!is_used(range, a)) break;
      visit_access(function, range, a, 0);
    }
  }
  template <typename Function>
  DIGLOT_DEVICE void visit_access(Function& function, const Range& range, int a, int row) const {
    constexpr bool kVisitsAll = Operation::kVisitsAbsent;
    const bool visits_all = kVisitsAll || (Shape::kIsWide && is_whole(range, a));
    if (Shape::kWidth == Width::kWide && !visits_all) return;
    const Accesses accesses = held_accesses(a);
    if (visits_all) {
      DIGLOT_UNROLL
      for (int i = row * kAlong; i < (row + 1) * kAlong; ++i) call(function, accesses, i);
    } else {
      DIGLOT_UNROLL
      for (int i = row * kAlong; i < (row + 1) * kAlong; ++i) {
        if (exists(range, a, i)) call(function, accesses, i);
      }
    }
  }

  template <int... kRow>
  DIGLOT_DEVICE auto operations_for_rows(const Operation& operation,
                                         std::integer_sequence<int, kRow...>) const {
    return PerRow<Operation, kRows>{{operation_for_row(operation, kRow)...}};
  }
  DIGLOT_DEVICE Operation operation_for_row(const Operation& operation, int row) const {
    constexpr int kExtra = kArrays - 1 - kInputs;  // arrays that follow the inputs
    int64_t offsets[kExtra + 1];                   // no array is empty
    DIGLOT_UNROLL
    for (int extra = 0; extra < kExtra; ++extra) {
      const int array = kInputs + 1 + extra;
      offsets[extra] = starts_.array[array];
      // The strides count accesses; the rows of an access are neighbours.
      if (kRows > 1) offsets[extra] += row * (rows_.starts.strides[0][array] / kRows);
    }
    return operation.for_row(offsets, n_ > 0 && place_.thread == 0 && place_.block == 0);
  }
};

}  // namespace diglot
