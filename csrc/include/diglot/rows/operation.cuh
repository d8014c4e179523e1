// Row operations: how a row is reduced to one state, and how that state maps the row's elements.
// Twin of triton_ops/lib/rows/operation.py.
//
// An operation derives from RowOperation and has
//
//   using State = ...;   with none() and combine(), as in reduce/states.cuh
//   Operation for_row(const int64_t* offsets, bool is_leader) const;
//       the operation of one row. `offsets`: the row's offsets in the arrays that follow the
//       inputs, which have one element per row. One thread of the row is the leader.
//   State reduce(Visit visit, int count) const;
//       reduces this thread's `count` elements: visit(function) calls function(x...) for each
//       element, one argument per input, always in the same order.
//   auto map(const State& total) const;
//       returns function(x...) -> an element of the output; `total` is the state of the whole row.
//
// For example, y = x / sum(x):
//
//   struct Normalize : RowOperation {
//     using State = Sums<float, 1>;
//     static constexpr bool kVisitsAbsent = true;  // a zero changes no sum
//     DIGLOT_DEVICE Normalize for_row(const int64_t*, bool) const { return {}; }
//     template <typename Visit>
//     DIGLOT_DEVICE State reduce(Visit visit, int) const {
//       State state = State::none();
//       visit([&](float x) { state.values[0] += x; });
//       return state;
//     }
//     DIGLOT_DEVICE auto map(const State& total) const {
//       const float factor = 1 / total.values[0];
//       return [=](float x) { return x * factor; };
//     }
//   };
#pragma once

#include <type_traits>

#include "diglot/reduce/states.cuh"

namespace diglot {

// What an operation may do besides. It sets a constant to say that it does.
struct RowOperation {
  // Threads visit elements beyond the row's end too, as kAbsent, which must not change a state: a
  // branch for each access would cost as much as those visits.
  static constexpr bool kVisitsAbsent = false;
  static constexpr float kAbsent = 0;

  // The operation has two inputs and keeps join(x, y) of each pair alone. It stores the joined
  // array at `joined`, which has the output's layout.
  //   static I join(I x, I y);
  //   I* joined;
  static constexpr bool kJoins = false;

  // Of two inputs, reduce() needs the first alone. Where the map reads a row again, the reduction
  // does not read the second input. visit() passes one or two arguments.
  static constexpr bool kReducesFirst = false;

  // The lanes or the block that hold a row reduce its `count` elements together, where that is
  // faster: sum(x) adds up one number per thread.
  //   State reduce_together(Visit visit, int64_t count, Sum sum) const;
  static constexpr bool kReducesTogether = false;

  // While reducing, the operation replaces each element x in registers by function(x), through one
  // call of replace(function). Its map knows this thread's state too.
  //   State reduce_replacing(Visit visit, Replace replace) const;
  //   auto map_replaced(const State& thread_state, const State& total) const;  -> function(x)
  static constexpr bool kReplaces = false;

  // The map depends on an element's position in its row, because it reads parameters there:
  // map.at_position<kCount>(first) returns function(i, x...) for the elements first + i, i <
  // kCount. map.kIsStaged says whether `first` counts from the block's first element. Of rows that
  // begin anywhere, map.around_position<kCount>(first, n) returns it; of the elements before the
  // row's start and behind its end, n, anything.
  static constexpr bool kMapsPositions = false;

  // Such a map's parameters may be staged in shared memory while a row is loaded.
  //   using Staged = ...;                          the addresses of the staged arrays
  //   static constexpr int kStagedBytes = ...;     for each element of a row
  //   Staged stage_params(Stage stage) const;      calls stage(array) for each array
  //   auto map.staged(const Staged& params) const; the map that reads there
  static constexpr bool kStagesParams = false;
};

// How many of the inputs the operation reduces.
template <typename Operation, int kInputs>
constexpr int kReducedInputs = Operation::kReducesFirst ? 1 : kInputs;

template <typename Operation, int kInputs>
DIGLOT_DEVICE void check_operation() {
  static_assert(std::is_base_of_v<RowOperation, Operation>,
                "a row operation derives from diglot::RowOperation");
  static_assert(std::is_same_v<decltype(Operation::State::none()), typename Operation::State>,
                "a row operation's State has a static none(), the state of no elements");
  static_assert(!Operation::kJoins || kInputs == 2, "join(x, y) takes exactly two inputs");
  static_assert(!Operation::kReducesFirst || kInputs == 2,
                "kReducesFirst is for operations of two inputs");
  static_assert(!Operation::kReplaces || Operation::kVisitsAbsent,
                "an operation that replaces elements must visit absent ones");
  static_assert(!Operation::kStagesParams || Operation::kMapsPositions,
                "only maps of positions read parameters that can be staged");
}

}  // namespace diglot
