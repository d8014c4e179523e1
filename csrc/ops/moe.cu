// A mixture of experts: what lies between its two grouped products. Rows go to their experts and
// back, and an activation follows the first product. Kernels, launchers, registration. Twin of
// triton_ops/moe.py.
#include "diglot/launch/dispatch.h"
#include "diglot/moe/activation.cuh"
#include "diglot/moe/rows.cuh"
#include "torch/launcher.h"

namespace diglot {

constexpr int kMoeThreads = 128;

template <typename T, int kElements>
__global__ void __launch_bounds__(kMoeThreads)
    moe_rows_kernel(const T* input, const int64_t* places, const compute_t<T>* weights, T* out,
                    MoeRows how) {
  sum_rows<T, kElements>(input, places, weights, out, how);
}

template <typename T, MoeActivation kActivation, int kElements>
__global__ void __launch_bounds__(kMoeThreads)
    moe_activation_kernel(const T* input, T* out, MoeRowShape shape) {
  map_activation<T, kActivation, kElements>(input, out, shape);
}

template <typename T, MoeActivation kActivation, int kElements>
__global__ void __launch_bounds__(kMoeThreads)
    moe_activation_gradient_kernel(const T* grad, const T* input, T* out, MoeRowShape shape) {
  map_activation_gradient<T, kActivation, kElements>(grad, input, out, shape);
}

}  // namespace diglot

namespace {

using namespace diglot;

// Calls function(T, elements of an access) for rows of `columns` elements: 16 bytes of them, or
// one.
template <typename Function>
void for_accesses(Planner& planner, const Operand& out, int64_t columns, bool is_aligned,
                  Function function) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kVector = kAccessBytes / sizeof(T);
    if (is_aligned && out.is_aligned() && columns % kVector == 0) {
      planner.plan.variant = "16-byte accesses";
      function(type, std::integral_constant<int, kVector>{});
    } else {
      planner.plan.variant = "single elements";
      function(type, std::integral_constant<int, 1>{});
    }
  });
}

void moe_rows(Planner& planner, const Operand& input, const Operand& places, const Operand* weights,
              int64_t spread, const Operand& out) {
  if (out.numel == 0) return;
  const int64_t rows = out.sizes[0], columns = out.sizes[1];
  const bool is_aligned =
      input.is_aligned() && input.strides[1] == 1 &&
      input.strides[0] * size_of(input.dtype) % static_cast<int64_t>(kAddressModulus) == 0;
  for_accesses(planner, out, columns, is_aligned, [&](auto type, auto elements) {
    using T = typename decltype(type)::type;
    const int64_t accesses = columns / elements;
    const MoeRows how{input.sizes[0],           accesses,         static_cast<int>(places.sizes[1]),
                      static_cast<int>(spread), input.strides[0], input.strides[1]};
    const dim3 grid{static_cast<unsigned>(rows), blocks_for(accesses, kMoeThreads)};
    planner.add<moe_rows_kernel<T, elements>>(
        {grid, kMoeThreads}, input.as<const T>(), places.as<const int64_t>(),
        address_of<const compute_t<T>>(weights), out.as<T>(), how);
  });
}

// Calls function(T, elements, activation, launch, shape).
template <typename Function>
void for_activation(Planner& planner, const Operand& input, const Operand& rows,
                    std::string_view activation, bool gated, Function function) {
  if (rows.numel == 0) return;
  const MoeRowShape shape{rows.sizes[0], rows.sizes[1], gated};
  for_accesses(planner, rows, shape.columns, input.is_aligned(), [&](auto type, auto elements) {
    const int64_t accesses = shape.rows * (shape.columns / elements);
    const Launch how{blocks_for(accesses, kMoeThreads), kMoeThreads};
    using Silu = std::integral_constant<MoeActivation, MoeActivation::kSilu>;
    using Gelu = std::integral_constant<MoeActivation, MoeActivation::kGelu>;
    if (activation == "silu") return function(type, elements, Silu{}, how, shape);
    if (activation == "gelu") return function(type, elements, Gelu{}, how, shape);
    throw std::invalid_argument("activation must be 'silu' or 'gelu'");
  });
}

void moe_activation_forward(Planner& planner, const Operand& input, std::string_view activation,
                            bool gated, const Operand& out) {
  for_activation(planner, input, out, activation, gated,
                 [&](auto type, auto elements, auto kind, const Launch& how, auto shape) {
                   using T = typename decltype(type)::type;
                   planner.add<moe_activation_kernel<T, kind, elements>>(how, input.as<const T>(),
                                                                         out.as<T>(), shape);
                 });
}

void moe_activation_backward(Planner& planner, const Operand& grad_output, const Operand& input,
                             std::string_view activation, bool gated, const Operand& out) {
  const bool is_aligned = input.is_aligned() && out.is_aligned();
  Operand rows = grad_output;
  if (!is_aligned) rows.remainder = 1;
  for_activation(planner, input, rows, activation, gated,
                 [&](auto type, auto elements, auto kind, const Launch& how, auto shape) {
                   using T = typename decltype(type)::type;
                   planner.add<moe_activation_gradient_kernel<T, kind, elements>>(
                       how, grad_output.as<const T>(), input.as<const T>(), out.as<T>(), shape);
                 });
}

DIGLOT_LAUNCHER(moe_rows,
                "(Tensor input, Tensor places, Tensor? weights, int spread, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(moe_activation_forward,
                "(Tensor input, str activation, bool gated, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(moe_activation_backward,
                "(Tensor grad_output, Tensor input, str activation, bool gated, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace
