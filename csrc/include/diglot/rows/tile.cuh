// A thread's part of a tile of a row, in registers: reduced, mapped and stored. Twin of
// triton_ops/lib/rows/tile.py.
#pragma once

#include <type_traits>
#include <utility>

#include "diglot/rows/tile_loads.cuh"

namespace diglot {

// The parameters of kCount elements.
struct NoParams {};
template <typename Operation, int kCount, bool kMapsPositions = Operation::kMapsPositions>
struct ParamsOf {
  using type = decltype(std::declval<const Operation&>().params_from(0).template load<kCount>(0));
};
template <typename Operation, int kCount>
struct ParamsOf<Operation, kCount, false> {
  using type = NoParams;
};

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

  // The states of the thread's rows, from the elements in registers.
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

  // The thread's elements in the type of the computation, where an operation may replace them.
  using Values = Vector<compute_t<I>, kElements>[kAccesses];
  DIGLOT_DEVICE State reduce_replacing(const Operation& operation, const Range& range,
                                       Values& values) const {
    static_assert(kHeld == 1 && kRows == 1);
    for_each_used(range, [&](int a) { values[a] = held_[0][a].computed(); });
    const auto visit = [&](auto function) {
      for_each_used(range, [&](int a) {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) function(values[a][i]);
      });
    };
    return operation.reduce_replacing(visit);
  }

  // The state of the elements that the thread's lanes hold together. Each sum converts them again:
  // 16-bit elements take half the registers.
  DIGLOT_DEVICE State reduce_together(const Operation& operation, const Range& range) const {
    static_assert(kHeld == 1 && kRows == 1);
    using Compute = compute_t<I>;
    const auto sum = [&](auto function) {
      Compute total = 0;
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {  // absent ones too: without branches they overlap
        const auto values = held_[0][a].computed();
        Compute part = 0;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) part = function(part, values.elements[i]);
        total += part;
      }
      return sum_of_team_lanes(total);
    };
    const auto sum_present = [&](Compute neutral, auto function) {
      Compute total = 0;
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        auto values = held_[0][a].computed();
        if (Shape::kWidth != Width::kWide && !(Shape::kIsWide && is_whole(range, a))) {
          DIGLOT_UNROLL
          for (int i = 0; i < kElements; ++i) {
            if (!exists(range, a, i)) values[i] = neutral;
          }
        }
        Compute part = 0;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) part = function(part, values[i]);
        total += Shape::kWidth == Width::kWide && !is_whole(range, a) ? Compute(0) : part;
      }
      return sum_of_team_lanes(total);
    };
    return operation.reduce_together(sum, sum_present, elements_of_lanes(range));
  }
  // The state of a team, from those of its warps.
  DIGLOT_DEVICE State combine_together(const Operation& operation, const State& part,
                                       const Range& range) {
    if constexpr (Shape::kTeam == Team::kLanes) {
      return part;
    } else {
      if (place_.threads == kWarpLanes) return part;
      constexpr int kMostWarps = Shape::kThreads / kWarpLanes;
      return operation.combine_together(
          exchange_warps_in_turn<kMostWarps>(part, turn_++), range.elements(),
          [&](auto x) { return sum_of_lanes(x, power_of_two_ceiling(kMostWarps)); });
    }
  }
  template <typename O>
  DIGLOT_DEVICE void store_replaced(const Operation& operation, const State& part,
                                    const State& total, const Values& values, const Range& range,
                                    O* output) const {
    const auto map = operation_for_row(operation, 0).map_replaced(part, total);
    [[maybe_unused]] const auto from = params_from(operation, range);
    O* const start = output + starts_.array[0] + offset(range, 0);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (!kLoadsAtOnce && !is_used(range, a)) break;
      Vector<O, kElements> result;
      map_elements(from, map, range, a,
                   [&](int i, auto function) { result[i] = convert<O>(function(values[a][i])); });
      store_access(start, range, a, result);
    }
  }

  // Loads the parameters of the map, if there are registers for them.
  DIGLOT_DEVICE void load_params(const Operation& operation, const Range& range) {
    if constexpr (kHoldsParams) {
      const auto from = params_from(operation, range);
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) params_[a] = params_of(from, range, a, 0);
    } else {
      prefetch_params(operation, range);
    }
  }
  // Begins to bring the parameters to the L2 cache. Only the first blocks do so, because all blocks
  // ask for the same lines; of peeled rows, only grids of few blocks.
  DIGLOT_DEVICE void prefetch_params(const Operation& operation, const Range& range) const {
    if constexpr (Operation::kMapsPositions && Shape::kIsWide) {
      if ((Shape::kIsPeeled ? gridDim.x : blockIdx.x + 1) > kFewBlocks) return;
      operation.for_each_param([&](auto* array) {
        DIGLOT_UNROLL
        for (int a = 0; a < kAccesses; ++a) {
          if (is_whole(range, a)) prefetch(array + (range.first + position(a, 0) - skipped_));
        }
      });
    }
  }

  // The map of the thread's only row.
  DIGLOT_DEVICE auto map(const Operation& operation, const State& total) const {
    const auto map = operation_for_row(operation, 0).map(total);
    return PerRow<std::decay_t<decltype(map)>, 1>{{map}};
  }
  // output = map(inputs...), where maps.values[row] maps each of the thread's rows.
  template <typename Maps, typename O>
  DIGLOT_DEVICE void store(const Operation& operation, const Maps& maps, const Range& range,
                           O* output) const {
    [[maybe_unused]] const auto from = params_from(operation, range);
    const auto result_of = [&](int a) {
      const Accesses accesses = held_accesses(a);
      Vector<O, kElements> result;
      if constexpr (Operation::kMapsPositions) {
        map_elements(from, maps.values[0], range, a, [&](int i, auto function) {
          result[i] = convert<O>(call(function, accesses, i));
        });
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          result[i] = convert<O>(call(maps.values[i / kAlong], accesses, i));
        }
      }
      return result;
    };
    if constexpr (Shape::kIsChunked) {
      step_through(range, output + starts_.array[0], 0, [&](int a, bool exists, O* address) {
        if (exists) store_vector(address, result_of(a));
      });
    } else if constexpr (Operation::kMapsPositions && Shape::kIsPeeled) {
      store_around(operation, maps.values[0], range, output);
    } else if constexpr (kLoadsAhead) {
      store_ahead(operation, maps.values[0], range, output);
    } else {
      O* const start = output + starts_.array[0] + offset(range, 0);
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        if (!kLoadsAtOnce && !is_used(range, a)) break;
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
  using Base::elements_of_lanes, Base::elements_to, Base::first_element;
  using Base::exists, Base::is_used, Base::is_whole, Base::offset, Base::position, Base::step_from,
      Base::step_through;
  using Base::held_, Base::n_, Base::place_, Base::rows_, Base::skipped_, Base::starts_;

  static constexpr unsigned kFewBlocks = 132;  // about one per multiprocessor
  static constexpr int kAtOnce = Shape::kIsWide ? kElements : 1;

  using Params = typename ParamsOf<Operation, kAtOnce>::type;
  static constexpr bool kIsLanes = Shape::kTeam == Team::kLanes;
  // Registers of a thread, and how many it needs with parameters in registers, by those of compiled
  // kernels.
  static constexpr int kRegisters = 65536 / (Shape::kThreads * Shape::kBlocks);
  static constexpr int kNeeded = 24 + 2 * kAccesses + 4 * kInputs * kAccesses +
                                 kAccesses * static_cast<int>(sizeof(Params)) / 4;
  static constexpr bool kHoldsParams = Operation::kMapsPositions && Shape::kWidth == Width::kWide &&
                                       !Shape::kIsTiled &&
                                       (sizeof(Params) <= kAccessBytes || kNeeded <= kRegisters);
  Params params_[kHoldsParams ? kAccesses : 1];

  // Loads parameters without branches, so that a block's accesses to them are in flight together.
  // Parameters of a wider type than the row would take too many registers.
  static constexpr bool kLoadsAtOnce = Operation::kMapsPositions && !kHoldsParams &&
                                       !Shape::kIsPeeled && sizeof(Params) <= 2 * kAccessBytes &&
                                       !kIsLanes;

  // Loads the parameters of an access before it stores the one before. Where lanes hold less, more
  // of them are faster.
  static constexpr bool kLoadsAhead = Operation::kMapsPositions && !kHoldsParams && kIsLanes &&
                                      Shape::kWidth == Width::kWide && kAccesses > 6;

  unsigned turn_ = 0;  // counts the block's exchanges between warps

  template <typename T>
  DIGLOT_DEVICE static T sum_of_lanes(T x, int lanes) {
    return lanes_sum(Sums<T, 1>{{x}}, lanes).values[0];
  }
  template <typename T>
  DIGLOT_DEVICE T sum_of_team_lanes(T x) const {
    return sum_of_lanes(x, Shape::kTeam == Team::kLanes ? place_.threads : kWarpLanes);
  }
  template <typename Function>
  DIGLOT_DEVICE void for_each_used(const Range& range, Function function) const {
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (!is_used(range, a)) break;
      function(a);
    }
  }

  // Calls use(i, function) for each element of an access, where function maps it.
  template <typename From, typename Map, typename Use>
  DIGLOT_DEVICE void map_elements(const From& from, const Map& map, const Range& range, int a,
                                  Use use) const {
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; i += kAtOnce) {
      if constexpr (Operation::kMapsPositions) {
        const auto function = map.with(kHoldsParams ? params_[a] : params_of(from, range, a, i));
        DIGLOT_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          use(i + j, [&](auto... x) { return function(j, x...); });
        }
      } else {
        DIGLOT_UNROLL
        for (int j = 0; j < kAtOnce; ++j) use(i + j, map);
      }
    }
  }

  // The source of parameters from the thread's first element on.
  DIGLOT_DEVICE auto params_from(const Operation& operation, const Range& range) const {
    if constexpr (!Operation::kMapsPositions) {
      return NoParams{};
    } else {
      const bool is_here = !Shape::kIsPeeled && exists(range, 0, 0);
      return operation.params_from(is_here ? range.first + first_element() : 0);
    }
  }
  // The parameters of kAtOnce elements, from element i of access a on. Absent elements get those of
  // others, so that no branch is needed.
  template <typename From>
  DIGLOT_DEVICE Params params_of(const From& from, const Range& range, int a, int i) const {
    if constexpr (Shape::kIsPeeled) {
      return from.template load_each<kAtOnce>(range.first + position(a, i) - skipped_, rows_.n);
    } else if constexpr (Shape::kWidth == Width::kDense) {
      return from.template load<kAtOnce>(elements_to(a, i), exists(range, a, i));
    } else {
      return from.template load<kAtOnce>(exists(range, a, i) ? elements_to(a, i) : 0);
    }
  }

  // One access of each array in registers, in the type of the computation.
  struct Accesses {
    Vector<compute_t<I>, kElements> inputs[kHeld];
  };
  // An access mapped with its parameters.
  template <typename O, typename Map>
  DIGLOT_DEVICE Vector<O, kElements> mapped(const Map& map, const Params& params,
                                            const Accesses& accesses) const {
    const auto function = map.with(params);
    Vector<O, kElements> result;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      result[i] = convert<O>(call([&](auto... x) { return function(i, x...); }, accesses, i));
    }
    return result;
  }
  // Stores a row whose map has parameters.
  template <typename Map, typename O>
  DIGLOT_DEVICE void store_ahead(const Operation& operation, const Map& map, const Range& range,
                                 O* output) const {
    const auto from = params_from(operation, range);
    O* const start = output + starts_.array[0] + offset(range, 0);
    Params next = params_of(from, range, 0, 0);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (!is_used(range, a)) break;
      const Params params = next;
      if (a + 1 < kAccesses) next = params_of(from, range, a + 1, 0);
      store_access(start, range, a, mapped<O>(map, params, held_accesses(a)));
    }
  }
  // Stores a peeled row whose map has parameters. Its accesses have no branches, and each loads the
  // parameters of the next one before it is stored. Those at the edges of the row or of the
  // parameters come last, element by element.
  template <typename Map, typename O>
  DIGLOT_DEVICE void store_around(const Operation& operation, const Map& map, const Range& range,
                                  O* output) const {
    O* const start = output + starts_.array[0] + offset(range, 0);
    const auto around = operation.template params_around<kElements>(
        range.first + first_element() - skipped_, rows_.n);
    // The steps of whole accesses to the row and to the parameters.
    const int rest = range.count - first_element(), skipped = range.skipped - first_element();
    const int begin = skipped > around.begin ? skipped : around.begin;
    const int end = rest - kElements < around.end ? rest - kElements + 1 : around.end;
    const auto is_inner = [&](int a) {
      return elements_to(a, 0) >= begin && elements_to(a, 0) < end;
    };
    const auto load = [&](int a) { return around.load(elements_to(a, 0), is_inner(a)); };
    // Parameters of a wider type than the row would take too many registers.
    constexpr bool kAhead = sizeof(Params) <= 2 * kAccessBytes;
    auto next = load(0);
    unsigned edges = 0;  // bit a is set if access a is at an edge
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      if (!kAhead && a > 0) next = load(a);
      const auto loaded = next;
      if (kAhead && a + 1 < kAccesses) next = load(a + 1);
      edges |= unsigned{elements_to(a, 0) < rest && !is_inner(a)} << a;
      store_vector(step_from(start, a, 0, 0),
                   mapped<O>(map, around.params(loaded), held_accesses(a)), is_inner(a));
    }
    const auto from = operation.params_from(0);
    DIGLOT_NO_UNROLL
    for (; edges != 0; edges &= edges - 1) {
      const int a = lowest_bit(edges);
      Accesses accesses = held_accesses(0);
      DIGLOT_UNROLL
      for (int other = 1; other < kAccesses; ++other) {
        if (other == a) accesses = held_accesses(other);
      }
      const auto result = mapped<O>(map, params_of(from, range, a, 0), accesses);
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (exists(range, a, i)) *step_from(start, a, i, 0) = result.elements[i];
      }
    }
  }

  template <typename O>
  DIGLOT_DEVICE void store_access(O* start, const Range& range, int a,
                                  const Vector<O, kElements>& access) const {
    if (Shape::kIsWide && is_whole(range, a)) {
      store_vector(step_from(start, a, 0, 0), access);
    } else if (Shape::kWidth != Width::kWide) {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if constexpr (Shape::kWidth == Width::kDense && sizeof(O) == 2) {
          store_element(step_from(start, a, i, 0), access[i], exists(range, a, i));
        } else {
          if (exists(range, a, i)) *step_from(start, a, i, 0) = access[i];
        }
      }
    }
  }

  DIGLOT_DEVICE Accesses held_accesses(int a) const {
    Accesses accesses;
    DIGLOT_UNROLL
    for (int k = 0; k < kHeld; ++k) accesses.inputs[k] = held_[k][a].computed();
    return accesses;
  }
  template <typename Function>
  DIGLOT_DEVICE static auto call(const Function& function, const Accesses& accesses, int i) {
    return call(function, accesses, i, std::make_integer_sequence<int, kHeld>{});
  }
  template <typename Function, int... kInput>
  DIGLOT_DEVICE static auto call(const Function& function, const Accesses& accesses, int i,
                                 std::integer_sequence<int, kInput...>) {
    return function(accesses.inputs[kInput].elements[i]...);
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
