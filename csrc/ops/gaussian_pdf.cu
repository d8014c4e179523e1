// The mean of a normal density at neighbouring points, and its derivative: kernels, launchers,
// registration. Twin of triton_ops/gaussian_pdf.py.
#include "diglot/gaussian_pdf.cuh"

#include <stdexcept>

#include "diglot/dispatch.h"
#include "diglot/elementwise_launch.h"
#include "torch/launcher.h"

namespace diglot {

template <typename T>
struct GaussianPdfForward {
  GaussianPdf<compute_t<T>> of;

  DIGLOT_DEVICE T operator()(T x) const {
    return convert<T>(gaussian_pdf(convert<compute_t<T>>(x), of));
  }
};

template <typename T>
struct GaussianPdfBackward {
  GaussianPdf<compute_t<T>> of;

  DIGLOT_DEVICE T operator()(T grad_output, T x) const {
    return convert<T>(
        gaussian_pdf_gradient(convert<compute_t<T>>(grad_output), convert<compute_t<T>>(x), of));
  }
};

// Blocks on a multiprocessor, at least. In float64 the compiler by itself, 0, would have more of
// them than registers suffice for, and keep some in memory.
template <typename T>
constexpr int kBackwardBlocks = sizeof(T) == 8 ? 1 : 0;

template <typename T, typename Shape>
__global__ void __launch_bounds__(kElementwiseThreads)
    gaussian_pdf_forward_flat(int64_t n, int head, const T* input, GaussianPdf<compute_t<T>> of,
                              T* output) {
  flat_map<Shape>(n, head, GaussianPdfForward<T>{of}, output, input);
}

template <typename T, typename Shape, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    gaussian_pdf_forward_strided(int64_t n, Strides<2, Index> strides, const T* input,
                                 GaussianPdf<compute_t<T>> of, T* output) {
  strided_map<Shape>(n, strides, GaussianPdfForward<T>{of}, output, input);
}

template <typename T, typename Shape>
__global__ void __launch_bounds__(kElementwiseThreads, kBackwardBlocks<T>)
    gaussian_pdf_backward_flat(int64_t n, int head, const T* grad_output, const T* input,
                               GaussianPdf<compute_t<T>> of, T* grad_input) {
  flat_map<Shape>(n, head, GaussianPdfBackward<T>{of}, grad_input, grad_output, input);
}

template <typename T, typename Shape, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads, kBackwardBlocks<T>)
    gaussian_pdf_backward_strided(int64_t n, Strides<3, Index> strides, const T* grad_output,
                                  const T* input, GaussianPdf<compute_t<T>> of, T* grad_input) {
  strided_map<Shape>(n, strides, GaussianPdfBackward<T>{of}, grad_input, grad_output, input);
}

}  // namespace diglot

namespace {

using namespace diglot;

int checked(Number terms) {
  if (terms.integer < 1 || terms.integer > kMostGaussianTerms) {
    throw std::invalid_argument("terms is out of range");
  }
  return static_cast<int>(terms.integer);
}

void gaussian_pdf_forward(const Stream& stream, const Operand& input, Number mean, Number std,
                          Number terms, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto of = gaussian_pdf_parameters<compute_t<T>>(mean.real, std.real, checked(terms));
    elementwise_launch<T>(
        {&out, &input},
        [&](auto shape, unsigned blocks, int64_t n, int head) {
          launch<gaussian_pdf_forward_flat<T, decltype(shape)>>(
              blocks, kElementwiseThreads, stream, n, head, input.as<const T>(), of, out.as<T>());
        },
        [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
          using Index = index_of<decltype(strides)>;
          launch<gaussian_pdf_forward_strided<T, decltype(shape), Index>>(
              blocks, kElementwiseThreads, stream, n, strides, input.as<const T>(), of,
              out.as<T>());
        });
  });
}

void gaussian_pdf_backward(const Stream& stream, const Operand& grad_output, const Operand& input,
                           Number mean, Number std, Number terms, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto of =
        gaussian_pdf_slope_parameters<compute_t<T>>(mean.real, std.real, checked(terms));
    elementwise_launch<T>(
        {&out, &grad_output, &input},
        [&](auto shape, unsigned blocks, int64_t n, int head) {
          launch<gaussian_pdf_backward_flat<T, decltype(shape)>>(
              blocks, kElementwiseThreads, stream, n, head, grad_output.as<const T>(),
              input.as<const T>(), of, out.as<T>());
        },
        [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
          using Index = index_of<decltype(strides)>;
          launch<gaussian_pdf_backward_strided<T, decltype(shape), Index>>(
              blocks, kElementwiseThreads, stream, n, strides, grad_output.as<const T>(),
              input.as<const T>(), of, out.as<T>());
        });
  });
}

DIGLOT_LAUNCHER(gaussian_pdf_forward,
                "(Tensor input, float mean, int mean_integer, float std, int std_integer, "
                "float terms_real, int terms, Tensor(a!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(
    gaussian_pdf_backward,
    "(Tensor grad_output, Tensor input, float mean, int mean_integer, float std, "
    "int std_integer, float terms_real, int terms, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
