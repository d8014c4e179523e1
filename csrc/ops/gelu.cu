// GELU and its derivative: kernels, launchers, registration. Twin of triton_ops/gelu.py.
#include "diglot/gelu.cuh"

#include "diglot/dispatch.h"
#include "diglot/elementwise_launch.h"
#include "torch/launcher.h"

namespace diglot {

template <typename T>
constexpr Precision kPrecision = sizeof(T) == 2   ? Precision::kHalf
                                 : sizeof(T) == 4 ? Precision::kFloat
                                                  : Precision::kDouble;

template <typename T, Approximate kApproximate>
struct GeluForward {
  DIGLOT_DEVICE T operator()(T x) const {
    return convert<T>(gelu<kApproximate, kPrecision<T>>(convert<compute_t<T>>(x)));
  }
};

template <typename T, Approximate kApproximate>
struct GeluBackward {
  DIGLOT_DEVICE T operator()(T grad_output, T x) const {
    return convert<T>(gelu_gradient<kApproximate, kPrecision<T>>(convert<compute_t<T>>(grad_output),
                                                                 convert<compute_t<T>>(x)));
  }
};

// The forward kernel gains from all the threads that a multiprocessor holds, for which its
// registers are limited to 32; the backward one, with more arithmetic, from its registers. In
// float64 32 would spill.
template <typename T>
constexpr int kForwardBlocks = sizeof(T) == 8 ? 1 : 2048 / kElementwiseThreads;

template <typename T, Approximate kApproximate, typename Shape>
__global__ void __launch_bounds__(kElementwiseThreads, kForwardBlocks<T>)
    gelu_forward_flat(int64_t n, int head, const T* input, T* output) {
  flat_map<Shape>(n, head, GeluForward<T, kApproximate>{}, output, input);
}

template <typename T, Approximate kApproximate, typename Shape, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    gelu_forward_strided(int64_t n, Strides<2, Index> strides, const T* input, T* output) {
  strided_map<Shape>(n, strides, GeluForward<T, kApproximate>{}, output, input);
}

template <typename T, Approximate kApproximate, typename Shape>
__global__ void __launch_bounds__(kElementwiseThreads)
    gelu_backward_flat(int64_t n, int head, const T* grad_output, const T* input, T* grad_input) {
  flat_map<Shape>(n, head, GeluBackward<T, kApproximate>{}, grad_input, grad_output, input);
}

template <typename T, Approximate kApproximate, typename Shape, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    gelu_backward_strided(int64_t n, Strides<3, Index> strides, const T* grad_output,
                          const T* input, T* grad_input) {
  strided_map<Shape>(n, strides, GeluBackward<T, kApproximate>{}, grad_input, grad_output, input);
}

cudaError_t probe_device() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes,
                               gelu_forward_flat<float, Approximate::kNone, FlatShape<1, 1>>);
}

}  // namespace diglot

namespace {

using namespace diglot;

// Calls function(Type<T>{}, std::integral_constant<Approximate, ...>{}).
template <typename Function>
void dispatch(DType dtype, std::string_view approximate, Function function) {
  dispatch_floating(dtype, [&](auto type) {
    if (approximate == "none") {
      function(type, std::integral_constant<Approximate, Approximate::kNone>{});
    } else if (approximate == "tanh") {
      function(type, std::integral_constant<Approximate, Approximate::kTanh>{});
    } else {
      throw std::invalid_argument("approximate must be 'none' or 'tanh'");
    }
  });
}

void gelu_forward(const Stream& stream, const Operand& input, std::string_view approximate,
                  const Operand& out) {
  dispatch(out.dtype, approximate, [&](auto type, auto approximate) {
    using T = typename decltype(type)::type;
    constexpr Approximate kApproximate = decltype(approximate)::value;
    elementwise_launch<T>(
        {&out, &input},
        [&](auto shape, unsigned blocks, int64_t n, int head) {
          launch<gelu_forward_flat<T, kApproximate, decltype(shape)>>(
              blocks, kElementwiseThreads, stream, n, head, input.as<const T>(), out.as<T>());
        },
        [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
          using Index = index_of<decltype(strides)>;
          launch<gelu_forward_strided<T, kApproximate, decltype(shape), Index>>(
              blocks, kElementwiseThreads, stream, n, strides, input.as<const T>(), out.as<T>());
        });
  });
}

void gelu_backward(const Stream& stream, const Operand& grad_output, const Operand& input,
                   std::string_view approximate, const Operand& out) {
  dispatch(out.dtype, approximate, [&](auto type, auto approximate) {
    using T = typename decltype(type)::type;
    constexpr Approximate kApproximate = decltype(approximate)::value;
    elementwise_launch<T>(
        {&out, &grad_output, &input},
        [&](auto shape, unsigned blocks, int64_t n, int head) {
          launch<gelu_backward_flat<T, kApproximate, decltype(shape)>>(
              blocks, kElementwiseThreads, stream, n, head, grad_output.as<const T>(),
              input.as<const T>(), out.as<T>());
        },
        [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
          using Index = index_of<decltype(strides)>;
          launch<gelu_backward_strided<T, kApproximate, decltype(shape), Index>>(
              blocks, kElementwiseThreads, stream, n, strides, grad_output.as<const T>(),
              input.as<const T>(), out.as<T>());
        });
  });
}

DIGLOT_LAUNCHER(gelu_forward,
                "(Tensor input, str approximate, Tensor(a!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(gelu_backward,
                "(Tensor grad_output, Tensor input, str approximate, Tensor(a!) out, Tensor(z!)? "
                "scratch) -> ()")

}  // namespace
