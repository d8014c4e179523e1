// GELU and its derivative: kernels, launchers, registration. Twin of triton_ops/gelu.py.
#include "diglot/gelu.cuh"

#include "diglot/launch/dispatch.h"
#include "diglot/launch/elementwise.h"
#include "torch/launcher.h"

namespace diglot {

// Of float32 a thread takes two accesses at most: a block's arithmetic then ends earlier. All
// threads of an SM should be resident, but two accesses of the tanh form need more registers than
// that leaves. In float64 they would spill.
template <typename T, Approximate kApproximate>
struct GeluForward {
  static constexpr int kFlatElements = sizeof(T) == 4 ? 8 : kElementsPerThread;
  static constexpr bool kHoldsLoads = sizeof(T) == 4;
  static constexpr bool kIsLong = sizeof(T) == 4 && kApproximate == Approximate::kTanh;
  template <int kAccesses>
  static constexpr int kFlatBlocks = sizeof(T) == 8              ? 1
                                     : kIsLong && kAccesses == 2 ? 12
                                                                 : 2048 / kElementwiseThreads;

  DIGLOT_DEVICE T operator()(T x) const {
    return convert<T>(gelu<kApproximate, kPrecision<T>>(convert<compute_t<T>>(x)));
  }
};

// The blocks that measured best. In float32, more registers make ptxas delay more loads.
template <typename T, Approximate kApproximate>
struct GeluBackward {
  static constexpr int kFlatElements = sizeof(T) == 4 ? 8 : kElementsPerThread;
  template <int kAccesses>
  static constexpr int kFlatBlocks = sizeof(T) == 4   ? (kAccesses == 1 ? 10 : 12)
                                     : sizeof(T) == 2 ? (kAccesses == 1 ? 12 : 8)
                                                      : 0;

  DIGLOT_DEVICE T operator()(T grad_output, T x) const {
    return convert<T>(gelu_gradient<kApproximate, kPrecision<T>>(convert<compute_t<T>>(grad_output),
                                                                 convert<compute_t<T>>(x)));
  }
};

}  // namespace diglot

namespace {

using namespace diglot;

template <template <typename, Approximate> typename Functor, typename... Inputs>
void launch_gelu(Planner& planner, std::string_view approximate, const Operand& out,
                 const Inputs&... inputs) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (approximate == "none") {
      map_elements<T>(planner, Functor<T, Approximate::kNone>{}, out, inputs...);
    } else if (approximate == "tanh") {
      map_elements<T>(planner, Functor<T, Approximate::kTanh>{}, out, inputs...);
    } else {
      throw std::invalid_argument("approximate must be 'none' or 'tanh'");
    }
  });
}

void gelu_forward(Planner& planner, const Operand& input, std::string_view approximate,
                  const Operand& out) {
  launch_gelu<GeluForward>(planner, approximate, out, input);
}

void gelu_backward(Planner& planner, const Operand& grad_output, const Operand& input,
                   std::string_view approximate, const Operand& out) {
  launch_gelu<GeluBackward>(planner, approximate, out, grad_output, input);
}

DIGLOT_LAUNCHER(gelu_forward,
                "(Tensor input, str approximate, Tensor(a!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(gelu_backward,
                "(Tensor grad_output, Tensor input, str approximate, "
                "Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
