// Softmax of rows and its derivative: kernels, launchers, registration. Twin of
// triton_ops/softmax.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/rows.h"
#include "torch/launcher.h"

namespace diglot {

// T: the output's type, for which exponentials are computed.
template <typename T>
struct SoftmaxRow : RowOperation {
  using State = MaxSum<T>;
  using Compute = compute_t<T>;

  static constexpr bool kVisitsAbsent = true;
  static constexpr float kAbsent = -std::numeric_limits<float>::infinity();
  static constexpr bool kReplaces = true;

  DIGLOT_DEVICE SoftmaxRow for_row(const int64_t*, bool) const { return {}; }

  template <typename Visit>
  DIGLOT_DEVICE State reduce(Visit visit, int) const {
    return State::reduce(visit);
  }

  // If nothing is greater than -inf, this is NaN, as in PyTorch.
  DIGLOT_DEVICE auto map(const State& total) const {
    const Compute max = total.max, factor = Compute(1) / total.sum;
    return [=](Compute x) { return exp_nonpositive_for<T>(x - max) * factor; };
  }

  // Each exponential is computed once, relative to the thread's greatest element.
  template <typename Visit>
  DIGLOT_DEVICE State reduce_replacing(Visit visit) const {
    return State::reduce_replacing(visit, [](Compute, Compute power) { return power; });
  }
  DIGLOT_DEVICE auto map_replaced(const State& thread_state, const State& total) const {
    const Compute factor = exp_nonpositive_for<T>(thread_state.max - total.max) / total.sum;
    return [=](Compute power) { return power * factor; };
  }
};

// y (g - sum(g y)).
template <typename T>
struct SoftmaxRowGradient : RowOperation {
  using State = Sums<compute_t<T>, 1>;
  using Compute = compute_t<T>;

  static constexpr bool kVisitsAbsent = true;
  static constexpr float kAbsent = 0;

  DIGLOT_DEVICE SoftmaxRowGradient for_row(const int64_t*, bool) const { return {}; }

  template <typename Visit>
  DIGLOT_DEVICE State reduce(Visit visit, int) const {
    State state = State::none();
    visit([&](Compute grad, Compute y) { state.values[0] = fma(grad, y, state.values[0]); });
    return state;
  }

  DIGLOT_DEVICE auto map(const State& total) const {
    const Compute sum = total.values[0];
    return [=](Compute grad, Compute y) { return y * (grad - sum); };
  }
};

template <typename Shape, typename I, typename O>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    softmax_forward_rows(Inputs<I, 1> inputs, O* output, typename SoftmaxRow<O>::State* states,
                         Rows<2> rows) {
  reduce_then_map_rows<Shape>(rows, SoftmaxRow<O>{}, inputs, output, states);
}

template <typename Shape, typename I, typename O>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    softmax_backward_rows(Inputs<I, 2> inputs, O* grad_input,
                          typename SoftmaxRowGradient<I>::State* states, Rows<3> rows) {
  reduce_then_map_rows<Shape>(rows, SoftmaxRowGradient<I>{}, inputs, grad_input, states);
}

}  // namespace diglot

namespace {

using namespace diglot;

// The output has the input's type; or it is float32 where the input is float16 or bfloat16.
void softmax_forward(Planner& planner, const Operand& input, int64_t dim, const Operand& out) {
  dispatch_widening(input.dtype, out.dtype, [&](auto input_type, auto output_type) {
    using I = typename decltype(input_type)::type;
    using O = typename decltype(output_type)::type;
    using State = typename SoftmaxRow<O>::State;
    launch_rows<I, O, 1>(
        planner, {&out, &input}, dim,
        [&](auto shape, const auto& rows, const Launch& how, const auto& states) {
          return planner.add<softmax_forward_rows<decltype(shape), I, O>>(
              how, inputs_of<I>(input), out.as<O>(), states.template as<State>(), rows);
        },
        true, sizeof(State));
  });
}

void softmax_backward(Planner& planner, const Operand& grad_output, const Operand& output,
                      int64_t dim, const Operand& out) {
  dispatch_widening(out.dtype, output.dtype, [&](auto output_type, auto input_type) {
    using I = typename decltype(input_type)::type;
    using O = typename decltype(output_type)::type;
    using State = typename SoftmaxRowGradient<I>::State;
    launch_rows<I, O, 2>(
        planner, {&out, &grad_output, &output}, dim,
        [&](auto shape, const auto& rows, const Launch& how, const auto& states) {
          return planner.add<softmax_backward_rows<decltype(shape), I, O>>(
              how, inputs_of<I>(grad_output, output), out.as<O>(), states.template as<State>(),
              rows);
        },
        true, sizeof(State));
  });
}

DIGLOT_LAUNCHER(softmax_forward,
                "(Tensor input, int dim, Tensor(a!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(softmax_backward,
                "(Tensor grad_output, Tensor output, int dim, "
                "Tensor(a!) out, Tensor(z!)? scratch) "
                "-> ()")

}  // namespace
