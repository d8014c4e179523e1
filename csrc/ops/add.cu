// input + alpha * other, and its gradients: kernels, launchers, registration. Twin of
// triton_ops/add.py.
#include "diglot/dispatch.h"
#include "diglot/elementwise_launch.h"
#include "diglot/math.cuh"
#include "torch/launcher.h"

namespace diglot {

// One rounding: the product is not rounded before the sum. On bool, `or` and `and`.
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

template <typename T, typename Shape>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_forward_flat(int64_t n, int head, const T* input, const T* other, compute_t<T> alpha,
                     T* output) {
  flat_map<Shape>(n, head, Add<T>{alpha}, output, input, other);
}

template <typename T, typename Shape>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_number_flat(int64_t n, int head, const T* input, compute_t<T> number, T* output) {
  flat_map<Shape>(n, head, Add<T>{number}, output, input);
}

template <typename T, typename Shape, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_forward_strided(int64_t n, Strides<3, Index> strides, const T* input, const T* other,
                        compute_t<T> alpha, T* output) {
  strided_map<Shape>(n, strides, Add<T>{alpha}, output, input, other);
}

template <typename T, typename Shape, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_number_strided(int64_t n, Strides<2, Index> strides, const T* input, compute_t<T> number,
                       T* output) {
  strided_map<Shape>(n, strides, Add<T>{number}, output, input);
}

// For inputs of other types than the output's: they are converted as they are loaded.
template <typename T, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_forward_mixed(int64_t n, Strides<3, Index> strides, const void* input, DType input_dtype,
                      const void* other, DType other_dtype, compute_t<T> alpha, T* output) {
  strided_for_each(n, strides, [&](const auto& at) {
    const auto a = load_as<T>(input, at.of[1], input_dtype);
    const auto b = load_as<T>(other, at.of[2], other_dtype);
    output[at.of[0]] = Add<T>{alpha}(a, b);
  });
}

template <typename T, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_number_mixed(int64_t n, Strides<2, Index> strides, const void* input, DType input_dtype,
                     compute_t<T> number, T* output) {
  strided_for_each(n, strides, [&](const auto& at) {
    output[at.of[0]] = Add<T>{number}(load_as<T>(input, at.of[1], input_dtype));
  });
}

template <typename T>
struct Scale {
  compute_t<T> alpha;
  DIGLOT_DEVICE T operator()(T x) const { return convert<T>(alpha * convert<compute_t<T>>(x)); }
};

template <typename T, typename Shape>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_backward_flat(int64_t n, int head, const T* grad_output, compute_t<T> alpha,
                      T* grad_input) {
  flat_map<Shape>(n, head, Scale<T>{alpha}, grad_input, grad_output);
}

template <typename T, typename Shape, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_backward_strided(int64_t n, Strides<2, Index> strides, const T* grad_output,
                         compute_t<T> alpha, T* grad_input) {
  strided_map<Shape>(n, strides, Scale<T>{alpha}, grad_input, grad_output);
}

// For a gradient of another type than that of the result.
template <typename T, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_backward_mixed(int64_t n, Strides<2, Index> strides, const T* grad_output,
                       compute_t<T> alpha, void* grad_input, DType grad_input_dtype) {
  strided_for_each(n, strides, [&](const auto& at) {
    store_as(grad_input, at.of[0], grad_input_dtype,
             alpha * convert<compute_t<T>>(grad_output[at.of[1]]));
  });
}

constexpr int kSumThreads = 256;
constexpr int kSumLoads = 4;  // loads in flight per thread

// Sums grad_output over the dimensions along which an operand was broadcast.
//
// A block is kLanes neighbouring kept elements wide and kSumThreads / kLanes reduced elements
// high: 32 lanes where the fastest dimension is kept, one where it is reduced, so that either way a
// warp reads neighbouring elements. blockIdx.y is the split of the reduced elements; with several
// splits, `output` is a workspace of one row per split, and a second launch sums the rows. The
// order of the sum depends on the shapes alone.
template <typename T, typename Index, int kLanes>
__global__ void __launch_bounds__(kSumThreads)
    add_backward_sum(int64_t kept, int64_t reduced, Strides<2, Index> kept_strides,
                     Strides<1, Index> reduced_strides, const T* grad_output, compute_t<T> alpha,
                     void* output, DType output_dtype, int64_t output_split_stride) {
  using Value = compute_t<T>;
  constexpr int kRows = kSumThreads / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int row = threadIdx.x / kLanes;
  const int64_t element = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  const int64_t rows_per_split = (reduced + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * rows_per_split;
  const int64_t end = begin + rows_per_split < reduced ? begin + rows_per_split : reduced;

  const auto at = kept_strides.offsets(static_cast<Index>(element < kept ? element : 0));
  Value partial[kSumLoads] = {};
  if (element < kept) {
    for (int64_t first = begin + row; first < end; first += kRows * kSumLoads) {
      DIGLOT_UNROLL
      for (int i = 0; i < kSumLoads; ++i) {
        const int64_t r = first + i * kRows;
        if (r < end) {
          const Index offset = reduced_strides.offsets(static_cast<Index>(r)).of[0];
          partial[i] += convert<Value>(grad_output[at.of[0] + offset]);
        }
      }
    }
  }
  __shared__ Value sums[kSumThreads];
  sums[threadIdx.x] = (partial[0] + partial[1]) + (partial[2] + partial[3]);
  __syncthreads();
  for (int half = kRows / 2; half > 0; half /= 2) {
    if (row < half) sums[threadIdx.x] += sums[threadIdx.x + half * kLanes];
    __syncthreads();
  }
  if (row == 0 && element < kept) {
    store_as(output, at.of[1] + blockIdx.y * output_split_stride, output_dtype,
             alpha * sums[threadIdx.x]);
  }
}

}  // namespace diglot

namespace {

using namespace diglot;

void add_forward(Stream stream, const Operand& input, const Operand* other, Number alpha,
                 const Operand& out) {
  dispatch_all(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto factor = alpha.as<compute_t<T>>();
    T* const output = out.as<T>();
    if (other == nullptr) {
      elementwise_launch<T>(
          {&out, &input},
          [&](auto shape, unsigned blocks, int64_t n, int head) {
            launch<add_number_flat<T, decltype(shape)>>(blocks, kElementwiseThreads, stream, n,
                                                        head, input.as<const T>(), factor, output);
          },
          [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
            using Index = index_of<decltype(strides)>;
            if (have_one_dtype({&out, &input})) {
              launch<add_number_strided<T, decltype(shape), Index>>(
                  blocks, kElementwiseThreads, stream, n, strides, input.as<const T>(), factor,
                  output);
            } else {
              launch<add_number_mixed<T, Index>>(blocks, kElementwiseThreads, stream, n, strides,
                                                 input.data, input.dtype, factor, output);
            }
          });
      return;
    }
    elementwise_launch<T>(
        {&out, &input, other},
        [&](auto shape, unsigned blocks, int64_t n, int head) {
          launch<add_forward_flat<T, decltype(shape)>>(blocks, kElementwiseThreads, stream, n, head,
                                                       input.as<const T>(), other->as<const T>(),
                                                       factor, output);
        },
        [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
          using Index = index_of<decltype(strides)>;
          if (have_one_dtype({&out, &input, other})) {
            launch<add_forward_strided<T, decltype(shape), Index>>(
                blocks, kElementwiseThreads, stream, n, strides, input.as<const T>(),
                other->as<const T>(), factor, output);
          } else {
            launch<add_forward_mixed<T, Index>>(blocks, kElementwiseThreads, stream, n, strides,
                                                input.data, input.dtype, other->data, other->dtype,
                                                factor, output);
          }
        });
  });
}

// The dimensions of `operand` along which `shape` (of no higher rank, right-aligned) has its size,
// or, with `kept` false, the others.
Operand select_dimensions(const Operand& operand, const Operand& shape, bool kept) {
  Operand selected = operand;
  selected.rank = 0;
  for (int d = 0; d < operand.rank; ++d) {
    const int own = d - (operand.rank - shape.rank);
    const bool same = own >= 0 && shape.sizes[own] == operand.sizes[d];
    if (same == kept) {
      selected.sizes[selected.rank] = operand.sizes[d];
      selected.strides[selected.rank++] = operand.strides[d];
    }
  }
  return selected;
}

template <typename T>
void launch_sum(Stream stream, const Layout<2>& kept, const Layout<1>& reduced, const void* grad,
                int64_t splits, compute_t<T> alpha, const Operand& out, int64_t split_stride) {
  const bool reduced_is_fastest =
      reduced.rank > 0 && (kept.rank == 0 || reduced.strides[0][0] < kept.strides[0][0]);
  const auto run = [&](auto lanes, auto index) {
    using Index = decltype(index);
    constexpr int kLanes = decltype(lanes)::value;
    kept.for_each_slice<Index>([&](int64_t elements, const auto& kept_strides) {
      launch<add_backward_sum<T, Index, kLanes>>(
          dim3(blocks_for(elements, kLanes), static_cast<unsigned>(splits)), kSumThreads, stream,
          elements, reduced.numel, kept_strides, reduced.device_strides<Index>(),
          static_cast<const T*>(grad), alpha, out.data, out.dtype, split_stride);
    });
  };
  const auto with_lanes = [&](auto lanes) {
    if (kept.numel * reduced.numel < (int64_t{1} << 31) && kept.is_narrow() &&
        reduced.is_narrow()) {
      run(lanes, uint32_t{});
    } else {
      run(lanes, int64_t{});
    }
  };
  if (reduced_is_fastest) {
    with_lanes(std::integral_constant<int, 1>{});
  } else {
    with_lanes(std::integral_constant<int, 32>{});
  }
}

void add_backward(Stream stream, const Operand& grad_output, Number alpha, const Operand* workspace,
                  const Operand& out) {
  if (out.numel == 0) return;
  dispatch_floating(grad_output.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Value = compute_t<T>;
    const Value factor = alpha.as<Value>();
    if (grad_output.numel == out.numel) {
      elementwise_launch<T>(
          {&out, &grad_output},
          [&](auto shape, unsigned blocks, int64_t n, int head) {
            launch<add_backward_flat<T, decltype(shape)>>(blocks, kElementwiseThreads, stream, n,
                                                          head, grad_output.as<const T>(), factor,
                                                          out.as<T>());
          },
          [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
            using Index = index_of<decltype(strides)>;
            if (have_one_dtype({&out, &grad_output})) {
              launch<add_backward_strided<T, decltype(shape), Index>>(
                  blocks, kElementwiseThreads, stream, n, strides, grad_output.as<const T>(),
                  factor, out.as<T>());
            } else {
              launch<add_backward_mixed<T, Index>>(blocks, kElementwiseThreads, stream, n, strides,
                                                   grad_output.as<const T>(), factor, out.data,
                                                   out.dtype);
            }
          });
      return;
    }
    const Operand kept_grad = select_dimensions(grad_output, out, true);
    const Operand kept_out = select_dimensions(out, grad_output, true);
    const Operand reduced_grad = select_dimensions(grad_output, out, false);
    const Layout<2> kept({&kept_grad, &kept_out});
    const Layout<1> reduced({&reduced_grad});
    last_variant() = workspace == nullptr ? "sum" : "sum, split";
    if (workspace == nullptr) {
      launch_sum<T>(stream, kept, reduced, grad_output.data, 1, factor, out, 0);
      return;
    }
    // The partial sums lie in the order of the kept elements: one row of them per split.
    const int64_t splits = workspace->sizes[0];
    Layout<2> to_workspace = kept;
    Layout<2> from_workspace = kept;
    int64_t step = 1;
    for (int d = 0; d < kept.rank; ++d) {
      to_workspace.strides[d][1] = step;
      from_workspace.strides[d][0] = step;
      step *= kept.sizes[d];
    }
    Operand rows;
    rows.rank = 1;
    rows.sizes[0] = splits;
    rows.strides[0] = kept.numel;
    launch_sum<T>(stream, to_workspace, reduced, grad_output.data, splits, Value{1}, *workspace,
                  kept.numel);
    launch_sum<Value>(stream, from_workspace, Layout<1>({&rows}), workspace->data, 1, factor, out,
                      0);
  });
}

DIGLOT_LAUNCHER(add_forward,
                "(Tensor input, Tensor? other, float alpha, int alpha_integer, Tensor(a!) out) "
                "-> ()")
DIGLOT_LAUNCHER(add_backward,
                "(Tensor grad_output, float alpha, int alpha_integer, Tensor(b!)? workspace, "
                "Tensor(a!) out) -> ()")

}  // namespace
