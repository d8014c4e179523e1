// Softmax over all elements and its derivative: kernels, launchers, registration. Twin of
// triton_ops/global_softmax.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/global.h"
#include "torch/launcher.h"

namespace diglot {

template <typename T>
struct SoftmaxForward {
  using State = MaxSum<T>;
  using Compute = compute_t<T>;

  template <typename Visit>
  DIGLOT_DEVICE State reduce(Visit visit, int) const {
    return State::reduce(visit);
  }

  // If nothing is greater than -inf, this is NaN, as in PyTorch.
  DIGLOT_DEVICE auto map(const State& total) const {
    const Compute max = total.max, factor = Compute(1) / total.sum;
    return [=](Compute x) { return exp_nonpositive_for<T>(x - max) * factor; };
  }
};

// y (g - sum(g y)).
template <typename T>
struct SoftmaxBackward {
  using State = Sums<compute_t<T>, 1>;
  using Compute = compute_t<T>;

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

template <typename T, int kAccesses>
__global__ void __launch_bounds__(kGlobalThreads, kGlobalBlocks)
    global_softmax_forward_phases(Chunks chunks, uint32_t* barrier_state, MaxSum<T>* partials,
                                  const T* input, T* output) {
  reduce_then_map<kAccesses>(chunks, barrier_state, partials, SoftmaxForward<T>{}, output,
                             Inputs<T, 1>{{input}});
}

template <typename T, int kAccesses>
__global__ void __launch_bounds__(kGlobalThreads, kGlobalBlocks)
    global_softmax_backward_phases(Chunks chunks, uint32_t* barrier_state,
                                   Sums<compute_t<T>, 1>* partials, const T* grad_output,
                                   const T* output, T* grad_input) {
  reduce_then_map<kAccesses>(chunks, barrier_state, partials, SoftmaxBackward<T>{}, grad_input,
                             Inputs<T, 2>{{grad_output, output}});
}

}  // namespace diglot

namespace {

using namespace diglot;

// The arrays lie in memory in one dense order.
void global_softmax_forward(Planner& planner, const Operand& input, int64_t blocks,
                            const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    cut_into_chunks<T>(planner, {&out, &input}, [&](auto accesses, const Chunks& chunks) {
      launch_on_chunks<global_softmax_forward_phases<T, decltype(accesses)::value>, MaxSum<T>>(
          planner, chunks, blocks, input.as<const T>(), out.as<T>());
    });
  });
}

void global_softmax_backward(Planner& planner, const Operand& grad_output, const Operand& output,
                             int64_t blocks, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    cut_into_chunks<T>(
        planner, {&out, &grad_output, &output}, [&](auto accesses, const Chunks& chunks) {
          launch_on_chunks<global_softmax_backward_phases<T, decltype(accesses)::value>,
                           Sums<compute_t<T>, 1>>(planner, chunks, blocks,
                                                  grad_output.as<const T>(), output.as<const T>(),
                                                  out.as<T>());
        });
  });
}

DIGLOT_LAUNCHER(global_softmax_forward,
                "(Tensor input, int blocks, Tensor(a!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(global_softmax_backward,
                "(Tensor grad_output, Tensor output, "
                "int blocks, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
