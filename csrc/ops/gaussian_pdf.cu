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

// In float64 the compiler by itself would have more blocks on an SM than registers suffice for, and
// keep some in memory.
template <typename T>
struct GaussianPdfBackward {
  static constexpr int kFlatBlocks = sizeof(T) == 8 ? 1 : 0;
  static constexpr int kStridedBlocks = kFlatBlocks;
  GaussianPdf<compute_t<T>> of;

  DIGLOT_DEVICE T operator()(T grad_output, T x) const {
    return convert<T>(
        gaussian_pdf_gradient(convert<compute_t<T>>(grad_output), convert<compute_t<T>>(x), of));
  }
};

}  // namespace diglot

namespace {

using namespace diglot;

int checked(Number terms) {
  if (terms.integer < 1 || terms.integer > kMostGaussianTerms) {
    throw std::invalid_argument("terms is out of range");
  }
  return static_cast<int>(terms.integer);
}

void gaussian_pdf_forward(Stream stream, const Operand& input, Number mean, Number std,
                          Number terms, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto of = gaussian_pdf_parameters<compute_t<T>>(mean.real, std.real, checked(terms));
    map_elements<T>(stream, GaussianPdfForward<T>{of}, out, input);
  });
}

void gaussian_pdf_backward(Stream stream, const Operand& grad_output, const Operand& input,
                           Number mean, Number std, Number terms, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto of =
        gaussian_pdf_slope_parameters<compute_t<T>>(mean.real, std.real, checked(terms));
    map_elements<T>(stream, GaussianPdfBackward<T>{of}, out, grad_output, input);
  });
}

DIGLOT_LAUNCHER(gaussian_pdf_forward,
                "(Tensor input, float mean, int mean_integer, float std, int std_integer, "
                "float terms_real, int terms, Tensor(a!) out) -> ()")
DIGLOT_LAUNCHER(gaussian_pdf_backward,
                "(Tensor grad_output, Tensor input, float mean, int mean_integer, float std, "
                "int std_integer, float terms_real, int terms, Tensor(a!) out) -> ()")

}  // namespace
