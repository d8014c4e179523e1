// input + alpha * other, and its gradients: kernels, launchers, registration. Twin of
// triton_ops/add.py.
#include <stdexcept>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/elementwise.h"
#include "diglot/launch/sum.h"
#include "diglot/math.cuh"
#include "torch/launcher.h"

namespace diglot {

// Rounds once: the product is not rounded before the sum. On bool, `or` and `and`.
template <typename T>
struct Add {
  using Value = compute_t<T>;
  Value alpha;

  DIGLOT_DEVICE T operator()(T input, T other) const {
    return apply(convert<Value>(input), convert<Value>(other));
  }
  // Without a second tensor, `other` is one.
  DIGLOT_DEVICE T operator()(T input) const {
    return apply(convert<Value>(input), static_cast<Value>(1));
  }

 private:
  DIGLOT_DEVICE T apply(Value input, Value other) const {
    if constexpr (std::is_same_v<T, bool>) {
      return input || (alpha && other);
    } else if constexpr (std::is_floating_point_v<Value>) {
      return convert<T>(fma(alpha, other, input));
    } else {
      return convert<T>(input + alpha * other);
    }
  }
};

// For inputs of other types than the output's. They are converted as they are loaded.
template <typename T, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_forward_mixed(int64_t n, Strides<3, Index> strides, const void* input, DType input_dtype,
                      const void* other, DType other_dtype, compute_t<T> alpha, T* output) {
  strided_for_each(n, strides, [&](const auto& offsets) {
    const auto a = load_as<T>(input, offsets.array[1], input_dtype);
    const auto b = load_as<T>(other, offsets.array[2], other_dtype);
    output[offsets.array[0]] = Add<T>{alpha}(a, b);
  });
}

template <typename T>
struct Scale {
  compute_t<T> alpha;
  DIGLOT_DEVICE T operator()(T x) const { return convert<T>(alpha * convert<compute_t<T>>(x)); }
};

// For a gradient of another type than the result's.
template <typename T, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_backward_mixed(int64_t n, Strides<2, Index> strides, const T* grad_output,
                       compute_t<T> alpha, void* grad_input, DType grad_input_dtype) {
  strided_for_each(n, strides, [&](const auto& offsets) {
    store_as(grad_input, offsets.array[0], grad_input_dtype,
             alpha * convert<compute_t<T>>(grad_output[offsets.array[1]]));
  });
}

// Sums grad_output over the dimensions along which an operand was broadcast.
//
// `kept_count`, `reduced_count` and the strides count accesses. Along the fastest dimension an
// access has kKept elements if it is kept, and kReduced if it is reduced; otherwise one. blockIdx.y
// is the split of the reduced elements. With several splits, `output` is a workspace of one row per
// split, and a second launch sums the rows. The order of the sum depends only on shapes, strides
// and alignment.
template <typename T, typename Index, int kKept, int kReduced>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks<Index>)
    add_backward_sum(SumShape shape, int64_t kept_count, int64_t reduced_count,
                     Strides<2, Index> kept_strides, Strides<1, Index> reduced_strides,
                     const T* grad_output, compute_t<T> alpha, void* output, DType output_dtype,
                     int64_t output_step, int64_t output_split_stride) {
  using Value = compute_t<T>;
  constexpr int kElements = kKept * kReduced;
  const int row = threadIdx.x / shape.row_step % shape.rows;
  const int column = threadIdx.x / shape.column_step % shape.columns;
  const int64_t element = static_cast<int64_t>(blockIdx.x) * shape.columns + column;
  const int64_t rows_per_split = (reduced_count + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * rows_per_split;
  const int64_t end =
      begin + rows_per_split < reduced_count ? begin + rows_per_split : reduced_count;

  const auto offsets =
      kept_strides.offsets(static_cast<Index>(element < kept_count ? element : kept_count - 1));
  Value partial[kElements] = {};
  for (int64_t first = begin + row; first < end; first += shape.rows * kSumLoads) {
    // Accesses past the end load the last one again: unconditional loads are all in flight at once.
    Vector<T, kElements> loaded[kSumLoads];
    DIGLOT_UNROLL
    for (int i = 0; i < kSumLoads; ++i) {
      const int64_t r = first + i * shape.rows < end ? first + i * shape.rows : end - 1;
      const Index offset = reduced_strides.offsets(static_cast<Index>(r)).array[0];
      loaded[i] = load_vector<T, kElements>(grad_output + offsets.array[0] + offset);
    }
    DIGLOT_UNROLL
    for (int i = 0; i < kSumLoads; ++i) {
      const bool is_summed = first + i * shape.rows < end;
      DIGLOT_UNROLL
      for (int e = 0; e < kElements; ++e) {
        partial[e] += is_summed ? convert<Value>(loaded[i][e]) : Value{0};
      }
    }
  }
  DIGLOT_UNROLL
  for (int half = kReduced / 2; half > 0; half /= 2) {
    DIGLOT_UNROLL
    for (int e = 0; e < half; ++e) partial[e] += partial[e + half];
  }
  __shared__ Value sums[kKept][kSumThreads];
  DIGLOT_UNROLL
  for (int e = 0; e < kKept; ++e) sums[e][threadIdx.x] = partial[e];
  __syncthreads();
  for (int half = shape.rows / 2; half > 0; half /= 2) {
    if (row < half) {
      DIGLOT_UNROLL
      for (int e = 0; e < kKept; ++e) {
        sums[e][threadIdx.x] += sums[e][threadIdx.x + half * shape.row_step];
      }
    }
    __syncthreads();
  }
  if (row == 0 && element < kept_count) {
    DIGLOT_UNROLL
    for (int e = 0; e < kKept; ++e) {
      store_as(output, offsets.array[1] + e * output_step + blockIdx.y * output_split_stride,
               output_dtype, alpha * sums[e][threadIdx.x]);
    }
  }
}

}  // namespace diglot

namespace {

using namespace diglot;

// Operands of several types take no flat walk.
constexpr auto kNoFlat = [](auto, unsigned, int64_t, int) {};

void add_forward(Planner& planner, const Operand& input, const Operand* other, Number alpha,
                 const Operand& out) {
  dispatch_all(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto factor = alpha.as<compute_t<T>>();
    const auto functor = [factor](const Arguments& now) { return Add<T>{factor(now)}; };
    if (other == nullptr) {
      if (input.dtype != out.dtype) {
        throw std::invalid_argument("add_forward: without other, input must have the dtype of out");
      }
      map_elements<T>(planner, functor, out, input);
    } else if (have_one_dtype({&out, &input, other})) {
      map_elements<T>(planner, functor, out, input, *other);
    } else {
      elementwise_launch<T>(planner, {&out, &input, other}, kNoFlat,
                            [&](auto, unsigned blocks, int64_t n, const auto& strides) {
                              planner.add<add_forward_mixed<T, index_of<decltype(strides)>>>(
                                  {blocks, kElementwiseThreads}, n, strides, input.as<const void>(),
                                  input.dtype, other->as<const void>(), other->dtype, factor,
                                  out.as<T>());
                            });
    }
  });
}

struct AddBackwardSum {
  template <typename T, typename Index, int kKept, int kReduced>
  static constexpr auto kernel() {
    return &add_backward_sum<T, Index, kKept, kReduced>;
  }
};

void add_backward(Planner& planner, const Operand& grad_output, Number alpha, const Operand& out) {
  if (out.numel == 0) return;
  dispatch_floating(grad_output.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto factor = alpha.as<compute_t<T>>();
    if (grad_output.numel != out.numel) {
      launch_sum<T, AddBackwardSum>(planner, grad_output, factor, out);
    } else if (have_one_dtype({&out, &grad_output})) {
      const auto functor = [factor](const Arguments& now) { return Scale<T>{factor(now)}; };
      map_elements<T>(planner, functor, out, grad_output);
    } else {
      elementwise_launch<T>(planner, {&out, &grad_output}, kNoFlat,
                            [&](auto, unsigned blocks, int64_t n, const auto& strides) {
                              planner.add<add_backward_mixed<T, index_of<decltype(strides)>>>(
                                  {blocks, kElementwiseThreads}, n, strides,
                                  grad_output.as<const T>(), factor, out.as<void>(), out.dtype);
                            });
    }
  });
}

DIGLOT_LAUNCHER(add_forward,
                "(Tensor input, Tensor? other, float alpha, int alpha_integer, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(add_backward,
                "(Tensor grad_output, float alpha, int alpha_integer, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")

}  // namespace

namespace diglot {

void plan_sum(Planner& planner, const Operand& grad_output, const Operand& out) {
  dispatch_floating(grad_output.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_sum<T, AddBackwardSum>(planner, grad_output, compute_t<T>{1}, out);
  });
}

}  // namespace diglot
