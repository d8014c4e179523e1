// Row operations: how to reduce a row to one state, and how that state maps the row's elements.
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

// Optional features of an operation. It sets a constant for each feature that it has.
struct RowOperation {
  // Threads also visit elements beyond the row's end, as kAbsent, which must not change a state. A
  // branch for each access would cost as much as those visits.
  static constexpr bool kVisitsAbsent = false;
  static constexpr float kAbsent = 0;

  // The operation has two inputs and keeps only join(x, y) of each pair. It stores the joined array
  // at `joined`, which has the output's layout.
  //   static I join(I x, I y);
  //   I* joined;
  static constexpr bool kJoins = false;

  // reduce() needs only the first of two inputs. Where the map reads a row again, the reduction
  // does not read the second input. visit() passes one or two arguments.
  static constexpr bool kReducesFirst = false;

  // Where registers hold a row, the operation may replace its elements. visit(function) then calls
  // function(x) with a reference. The map of replaced elements gets `part`, the state of the
  // thread's elements.
  //   State reduce_replacing(Visit visit) const;
  //   auto map_replaced(const State& part, const State& total) const;  -> function(x)
  static constexpr bool kReplaces = false;

  // Where registers hold a row, a group of lanes reduces the `count` elements that it holds
  // together: all of a row, or one warp's share. sum(function) and sum_present(neutral, function)
  // begin with 0 and take function(sum, x) of each element. Absent elements are kAbsent; those of
  // sum_present are left out or are `neutral`. A block's warps combine their states in the same
  // way: each lane has one of them, or none(), and sum(x) adds up one number per lane.
  //   State reduce_together(Sum sum, SumPresent sum_present, int count) const;
  //   State combine_together(const State& part, int count, Sum sum) const;
  static constexpr bool kReducesTogether = false;

  // The map depends on an element's position in its row, because it has parameters there.
  // params_from(first).load<kCount>(step) loads those of the kCount elements from first + step on,
  // and map.with(params) returns function(i, x...). A thread loads them before the row is reduced,
  // if it has registers for them.
  //
  // For rows that begin anywhere, around = params_around<kCount>(first, n) has around.load(step,
  // exists), without a branch, and around.params() of that, for steps in [begin, end). Others come
  // from params_from(0).load_each<kCount>(first, n).
  // Parameters outside the row, before its start or behind its end n, may have any value.
  // for_each_param(function) calls function(array) for each array of parameters.
  static constexpr bool kMapsPositions = false;
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
  static_assert(!Operation::kReducesTogether || !Operation::kReplaces,
                "threads that reduce together replace nothing");
}

}  // namespace diglot
