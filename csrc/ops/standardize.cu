// Standardization over all elements and its derivative: kernels, launchers, registration. Twin of
// triton_ops/standardize.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/global.h"
#include "torch/launcher.h"

namespace diglot {

template <typename T>
struct StandardizeForward {
  using State = Moments<compute_t<T>>;
  using Compute = compute_t<T>;

  Compute eps;
  Compute* mean;
  Compute* rstd;

  template <typename Visit>
  DIGLOT_DEVICE State reduce(Visit visit, int count) const {
    Compute sum = 0, squares = 0;
    visit([&](Compute x) { sum += x; });
    const Compute thread_mean = count == 0 ? Compute(0) : sum / static_cast<Compute>(count);
    visit([&](Compute x) { squares = fma(x - thread_mean, x - thread_mean, squares); });
    return {static_cast<Compute>(count), thread_mean, squares};
  }

  DIGLOT_DEVICE auto map(const State& total) const {
    const Compute center = total.mean;
    const Compute factor = reciprocal_root(total.squares / total.count + eps);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      *mean = center;
      *rstd = factor;
    }
    return [=](Compute x) { return (x - center) * factor; };
  }
};

// rstd (g - mean(g) - y mean(g y)), where y is the standardized input.
template <typename T>
struct StandardizeBackward {
  using State = Sums<compute_t<T>, 2>;
  using Compute = compute_t<T>;

  Compute n;
  Compute center;
  Compute factor;

  template <typename Visit>
  DIGLOT_DEVICE State reduce(Visit visit, int) const {
    State state = State::none();
    visit([&](Compute grad, Compute x) {
      state.values[0] += grad;
      state.values[1] = fma(grad, (x - center) * factor, state.values[1]);
    });
    return state;
  }

  DIGLOT_DEVICE auto map(const State& total) const {
    const Compute grad_mean = total.values[0] / n, slope = total.values[1] / n;
    return [=, center = center, factor = factor](Compute grad, Compute x) {
      return factor * fma((x - center) * factor, -slope, grad - grad_mean);
    };
  }
};

template <typename T, int kAccesses>
__global__ void __launch_bounds__(kGlobalThreads, kGlobalBlocks)
    standardize_forward_phases(Chunks chunks, uint32_t* barrier_state,
                               Moments<compute_t<T>>* partials, const T* input, compute_t<T> eps,
                               compute_t<T>* mean, compute_t<T>* rstd, T* output) {
  reduce_then_map<kAccesses>(chunks, barrier_state, partials,
                             StandardizeForward<T>{eps, mean, rstd}, output, Inputs<T, 1>{{input}});
}

template <typename T, int kAccesses>
__global__ void __launch_bounds__(kGlobalThreads, kGlobalBlocks)
    standardize_backward_phases(Chunks chunks, uint32_t* barrier_state,
                                Sums<compute_t<T>, 2>* partials, const T* grad_output,
                                const T* input, const compute_t<T>* mean, const compute_t<T>* rstd,
                                T* grad_input) {
  const StandardizeBackward<T> operation{static_cast<compute_t<T>>(chunks.n), *mean, *rstd};
  reduce_then_map<kAccesses>(chunks, barrier_state, partials, operation, grad_input,
                             Inputs<T, 2>{{grad_output, input}});
}

}  // namespace diglot

namespace {

using namespace diglot;

// The arrays lie in memory in one dense order. `statistics` are the mean and rstd, in the type of
// the computation.
void standardize_forward(Planner& planner, const Operand& input, Real eps, int64_t blocks,
                         const Operand& statistics, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Compute = compute_t<T>;
    cut_into_chunks<T>(planner, {&out, &input}, [&](auto accesses, const Chunks& chunks) {
      launch_on_chunks<standardize_forward_phases<T, decltype(accesses)::value>, Moments<Compute>>(
          planner, chunks, blocks, input.as<const T>(), eps.as<Compute>(), statistics.as<Compute>(),
          statistics.as<Compute>() + 1, out.as<T>());
    });
  });
}

void standardize_backward(Planner& planner, const Operand& grad_output, const Operand& input,
                          const Operand& statistics, int64_t blocks, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Compute = compute_t<T>;
    cut_into_chunks<T>(
        planner, {&out, &grad_output, &input}, [&](auto accesses, const Chunks& chunks) {
          launch_on_chunks<standardize_backward_phases<T, decltype(accesses)::value>,
                           Sums<Compute, 2>>(planner, chunks, blocks, grad_output.as<const T>(),
                                             input.as<const T>(), statistics.as<const Compute>(),
                                             statistics.as<const Compute>() + 1, out.as<T>());
        });
  });
}

DIGLOT_LAUNCHER(standardize_forward,
                "(Tensor input, float eps, int blocks, Tensor(a!) statistics, Tensor(b!) out, "
                "Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(standardize_backward,
                "(Tensor grad_output, Tensor input, Tensor statistics, "
                "int blocks, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
