// The mean of a normal density at neighbouring points, and its derivative: kernels, launchers,
// registration. Twin of triton_ops/gaussian_pdf.py.
#include "diglot/gaussian_pdf.cuh"

#include <stdexcept>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/elementwise.h"
#include "torch/launcher.h"

namespace diglot {

template <typename T>
struct GaussianPdfForward {
  GaussianPdf<compute_t<T>> p;

  DIGLOT_DEVICE T operator()(T x) const {
    return convert<T>(gaussian_pdf(convert<compute_t<T>>(x), p));
  }
};

// In float64 the compiler would choose more blocks on an SM than registers suffice for, and spill.
template <typename T>
struct GaussianPdfBackward {
  static constexpr int kStridedBlocks = sizeof(T) == 8 ? 1 : 0;
  template <int kAccesses>
  static constexpr int kFlatBlocks = kStridedBlocks;
  GaussianPdf<compute_t<T>> p;

  DIGLOT_DEVICE T operator()(T grad_output, T x) const {
    return convert<T>(
        gaussian_pdf_gradient(convert<compute_t<T>>(grad_output), convert<compute_t<T>>(x), p));
  }
};

}  // namespace diglot

namespace {

using namespace diglot;

int checked(int64_t terms) {
  if (terms < 1 || terms > kMostGaussianTerms) {
    throw std::invalid_argument("terms is out of range");
  }
  return static_cast<int>(terms);
}

void gaussian_pdf_forward(Planner& planner, const Operand& input, Real mean, Real std,
                          Integer terms, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto functor = [=](const Arguments& now) {
      return GaussianPdfForward<T>{
          gaussian_pdf_parameters<compute_t<T>>(mean(now), std(now), checked(terms(now)))};
    };
    map_elements<T>(planner, functor, out, input);
  });
}

void gaussian_pdf_backward(Planner& planner, const Operand& grad_output, const Operand& input,
                           Real mean, Real std, Integer terms, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto functor = [=](const Arguments& now) {
      return GaussianPdfBackward<T>{
          gaussian_pdf_slope_parameters<compute_t<T>>(mean(now), std(now), checked(terms(now)))};
    };
    map_elements<T>(planner, functor, out, grad_output, input);
  });
}

DIGLOT_LAUNCHER(gaussian_pdf_forward,
                "(Tensor input, float mean, float std, int terms, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(gaussian_pdf_backward,
                "(Tensor grad_output, Tensor input, float mean, float std, int terms, "
                "Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
