// input + alpha * other, and its gradients: kernels, launchers, registration. Twin of
// triton_ops/add.py.
#include <stdexcept>

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

template <typename T>
struct Scale {
  compute_t<T> alpha;
  DIGLOT_DEVICE T operator()(T x) const { return convert<T>(alpha * convert<compute_t<T>>(x)); }
};

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
// Blocks on a multiprocessor, at least. Of 64-bit offsets the compiler by itself, 0, would have
// more of them than registers suffice for, and keep some in memory.
template <typename Index>
constexpr int kSumBlocks = sizeof(Index) == 8 ? 1 : 0;

// How the threads of a block of add_backward_sum lie: `columns` along the kept elements, `rows`
// along the reduced ones. Both are powers of two, and kSumThreads their product.
struct SumShape {
  int rows, columns;
  int row_step, column_step;  // from a thread to the next row or column: 1 along the fastest
};

// Sums grad_output over the dimensions along which an operand was broadcast.
//
// `kept`, `reduced` and their strides count accesses: of kKept elements along the fastest dimension
// where it is kept, of kReduced where it is reduced, of one otherwise. blockIdx.y is the split of
// the reduced ones; with several splits, `output` is a workspace of one row per split, and a second
// launch sums the rows. The order of the sum depends on shapes, strides and alignment alone.
template <typename T, typename Index, int kKept, int kReduced>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks<Index>)
    add_backward_sum(SumShape shape, int64_t kept, int64_t reduced, Strides<2, Index> kept_strides,
                     Strides<1, Index> reduced_strides, const T* grad_output, compute_t<T> alpha,
                     void* output, DType output_dtype, int64_t output_step,
                     int64_t output_split_stride) {
  using Value = compute_t<T>;
  constexpr int kElements = kKept * kReduced;
  const int row = threadIdx.x / shape.row_step % shape.rows;
  const int column = threadIdx.x / shape.column_step % shape.columns;
  const int64_t element = static_cast<int64_t>(blockIdx.x) * shape.columns + column;
  const int64_t rows_per_split = (reduced + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * rows_per_split;
  const int64_t end = begin + rows_per_split < reduced ? begin + rows_per_split : reduced;

  const auto at = kept_strides.offsets(static_cast<Index>(element < kept ? element : kept - 1));
  Value partial[kElements] = {};
  for (int64_t first = begin + row; first < end; first += shape.rows * kSumLoads) {
    // Past the end the last is loaded again: loads without a condition are all in flight at once.
    Vector<T, kElements> loaded[kSumLoads];
    DIGLOT_UNROLL
    for (int i = 0; i < kSumLoads; ++i) {
      const int64_t r = first + i * shape.rows < end ? first + i * shape.rows : end - 1;
      const Index offset = reduced_strides.offsets(static_cast<Index>(r)).of[0];
      loaded[i] = load_vector<T, kElements>(grad_output + at.of[0] + offset);
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
  if (row == 0 && element < kept) {
    DIGLOT_UNROLL
    for (int e = 0; e < kKept; ++e) {
      store_as(output, at.of[1] + e * output_step + blockIdx.y * output_split_stride, output_dtype,
               alpha * sums[e][threadIdx.x]);
    }
  }
}

}  // namespace diglot

namespace {

using namespace diglot;

// Operands of several types take no flat walk.
constexpr auto kNoFlat = [](auto, unsigned, int64_t, int) {};

void add_forward(Stream stream, const Operand& input, const Operand* other, Number alpha,
                 const Operand& out) {
  dispatch_all(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Add<T> functor{alpha.as<compute_t<T>>()};
    if (other == nullptr) {
      if (input.dtype != out.dtype) {
        throw std::invalid_argument("add_forward: without other, input must have the dtype of out");
      }
      map_elements<T>(stream, functor, out, input);
    } else if (have_one_dtype({&out, &input, other})) {
      map_elements<T>(stream, functor, out, input, *other);
    } else {
      elementwise_launch<T>({&out, &input, other}, kNoFlat,
                            [&](auto, unsigned blocks, int64_t n, const auto& strides) {
                              launch<add_forward_mixed<T, index_of<decltype(strides)>>>(
                                  blocks, kElementwiseThreads, stream, n, strides, input.data,
                                  input.dtype, other->data, other->dtype, functor.alpha,
                                  out.as<T>());
                            });
    }
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

// The least power of two that is at least n, and at most `most`.
int power_of_two(int64_t n, int most) {
  int result = 1;
  while (result < n && result < most) result *= 2;
  return result;
}

// Threads along the fastest dimension until a warp reads neighbouring elements, or all that there
// are; the others along the slower one.
SumShape sum_shape(int64_t kept, int64_t reduced, int64_t splits, bool reduced_is_fastest) {
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  int columns = power_of_two(kept, 32);
  if (reduced_is_fastest) {
    columns =
        kSumThreads / power_of_two((reduced / splits + kSumLoads - 1) / kSumLoads, kSumThreads);
  }
  while ((kept + columns - 1) / columns > kMostBlocks && columns < kSumThreads) columns *= 2;
  const int rows = kSumThreads / columns;
  return {rows, columns, reduced_is_fastest ? 1 : columns, reduced_is_fastest ? rows : 1};
}

template <typename T>
void launch_sum(Stream stream, const Layout<2>& kept, const Layout<1>& reduced, const void* grad,
                int64_t splits, compute_t<T> alpha, const Operand& out, int64_t split_stride) {
  constexpr int kVector = kVectorElements<T>;
  const bool reduced_is_fastest =
      reduced.rank > 0 && (kept.rank == 0 || reduced.strides[0][0] < kept.strides[0][0]);
  const bool is_aligned = reinterpret_cast<uintptr_t>(grad) % kAccessBytes == 0;
  const auto run = [&](auto kept_elements, auto reduced_elements, auto index,
                       const Layout<2>& kept_accesses, const Layout<1>& reduced_accesses) {
    using Index = decltype(index);
    const SumShape shape =
        sum_shape(kept_accesses.numel, reduced_accesses.numel, splits, reduced_is_fastest);
    kept_accesses.template for_each_slice<Index>([&](int64_t elements, const auto& kept_strides) {
      launch<add_backward_sum<T, Index, decltype(kept_elements)::value,
                              decltype(reduced_elements)::value>>(
          dim3(blocks_for(elements, shape.columns), static_cast<unsigned>(splits)), kSumThreads,
          stream, shape, elements, reduced_accesses.numel, kept_strides,
          reduced_accesses.template device_strides<Index>(), static_cast<const T*>(grad), alpha,
          out.data, out.dtype, kept.rank > 0 ? kept.strides[0][1] : 0, split_stride);
    });
  };
  const auto with_index = [&](auto kept_elements, auto reduced_elements,
                              const Layout<2>& kept_accesses, const Layout<1>& reduced_accesses) {
    if (kept_accesses.is_narrow() && reduced_accesses.is_narrow()) {
      run(kept_elements, reduced_elements, uint32_t{}, kept_accesses, reduced_accesses);
    } else {
      run(kept_elements, reduced_elements, int64_t{}, kept_accesses, reduced_accesses);
    }
  };
  const std::integral_constant<int, 1> one;
  const std::integral_constant<int, kVector> vector;
  if (is_aligned && !reduced_is_fastest && kept.has_vectors(0, kVector) &&
      reduced.has_multiples(0, kVector, 0)) {
    with_index(vector, one, kept.in_vectors(kVector), reduced);
  } else if (is_aligned && reduced_is_fastest && reduced.has_vectors(0, kVector) &&
             kept.has_multiples(0, kVector, 0)) {
    with_index(one, vector, kept, reduced.in_vectors(kVector));
  } else {
    with_index(one, one, kept, reduced);
  }
}

void add_backward(Stream stream, const Operand& grad_output, Number alpha, const Operand* workspace,
                  const Operand& out) {
  if (out.numel == 0) {
    last_variant() = "nothing to do";
    return;
  }
  dispatch_floating(grad_output.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Value = compute_t<T>;
    const Value factor = alpha.as<Value>();
    if (grad_output.numel == out.numel) {
      if (have_one_dtype({&out, &grad_output})) {
        map_elements<T>(stream, Scale<T>{factor}, out, grad_output);
      } else {
        elementwise_launch<T>({&out, &grad_output}, kNoFlat,
                              [&](auto, unsigned blocks, int64_t n, const auto& strides) {
                                launch<add_backward_mixed<T, index_of<decltype(strides)>>>(
                                    blocks, kElementwiseThreads, stream, n, strides,
                                    grad_output.as<const T>(), factor, out.data, out.dtype);
                              });
      }
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
