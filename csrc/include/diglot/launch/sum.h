// Host side of a sum over broadcast dimensions: how often it is split, and how the threads of a
// block lie. Twin of triton_ops/launch/sum.py.
#pragma once

#include <limits>
#include <utility>

#include "diglot/launch/elementwise.h"

namespace diglot {

constexpr int kSumThreads = 256;
constexpr int64_t kScratchBytes = 256;  // a part of scratch starts at a multiple of this
constexpr int kSumLoads = 4;            // loads in flight per thread
// Minimum of resident blocks per SM (__launch_bounds__); 0 leaves it to the compiler. With 64-bit
// offsets the compiler would choose more blocks than registers suffice for, and spill.
template <typename Index>
constexpr int kSumBlocks = sizeof(Index) == 8 ? 1 : 0;

// How the threads of a block of add_backward_sum lie: `columns` along the kept elements, `rows`
// along the reduced ones. Both are powers of two, and kSumThreads their product.
struct SumShape {
  int rows, columns;
  int row_step, column_step;  // from a thread to the next row or column: 1 along the fastest
};

inline Numbers order_of(const SumShape& shape) {
  return {{"rows", shape.rows}, {"columns", shape.columns}};
}

// How many parts the sum over broadcast dimensions is split into. A block is assumed to be one kept
// element wide if a reduced dimension is the fastest. Otherwise it is as wide as a warp's 16-byte
// accesses.
inline int64_t sum_splits(Planner& planner, const Operand& grad_output, const Operand& out) {
  const int64_t kept_count = std::max<int64_t>(out.numel, 1);
  const int64_t reduced_count = grad_output.numel / kept_count;
  if (reduced_count <= 1) return 1;
  std::pair<int64_t, bool> fastest{std::numeric_limits<int64_t>::max(), false};
  for (int d = 0; d < grad_output.rank; ++d) {
    const int out_dimension = d - (grad_output.rank - out.rank);
    const bool is_kept = (out_dimension < 0 ? 1 : out.sizes[out_dimension]) == grad_output.sizes[d];
    if (grad_output.sizes[d] != 1) fastest = std::min(fastest, {grad_output.strides[d], is_kept});
  }
  const int64_t kept_bytes = planner.tuned(Tunable::kSumKeptBytes);
  const int64_t width =
      fastest.second ? std::min(kept_count, kept_bytes / size_of(grad_output.dtype)) : 1;
  const int64_t blocks = (kept_count + width - 1) / width;
  return std::max<int64_t>(
      1, std::min(planner.tuned(Tunable::kSumSplitBlocks) / blocks,
                  reduced_count * width / planner.tuned(Tunable::kSumSplitElements)));
}

// The dimensions of `operand` where `shape` (of no higher rank, aligned on the right) has the same
// size. With `is_kept` false, the others.
inline Operand select_dimensions(const Operand& operand, const Operand& shape, bool is_kept) {
  Operand selected = operand;
  selected.rank = 0;
  for (int d = 0; d < operand.rank; ++d) {
    const int shape_dimension = d - (operand.rank - shape.rank);
    const bool same = shape_dimension >= 0 && shape.sizes[shape_dimension] == operand.sizes[d];
    if (same == is_kept) {
      selected.sizes[selected.rank] = operand.sizes[d];
      selected.strides[selected.rank++] = operand.strides[d];
    }
  }
  return selected;
}

// The least power of two that is at least n, and at most `most`.
inline int power_of_two(int64_t n, int most) {
  int result = 1;
  while (result < n && result < most) result *= 2;
  return result;
}

// The shape of a block. Along the fastest dimension it has threads until a warp reads neighbouring
// elements, or all of them. The other threads lie along the slower one.
inline SumShape sum_shape(int64_t kept_count, int64_t reduced_count, int64_t splits,
                          bool reduced_is_fastest) {
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  int columns = power_of_two(kept_count, 32);
  if (reduced_is_fastest) {
    columns = kSumThreads /
              power_of_two((reduced_count / splits + kSumLoads - 1) / kSumLoads, kSumThreads);
  }
  while ((kept_count + columns - 1) / columns > kMostBlocks && columns < kSumThreads) columns *= 2;
  const int rows = kSumThreads / columns;
  return {rows, columns, reduced_is_fastest ? 1 : columns, reduced_is_fastest ? rows : 1};
}

// The input of a sum, and its output.
template <typename T>
struct SumArrays {
  Address<const T> grad;
  bool is_aligned;
  Address<void> out;
  DType out_dtype;
};

template <typename T, typename Kernels, typename Alpha>
void launch_part_of_sum(Planner& planner, const Layout<2>& kept_layout,
                        const Layout<1>& reduced_layout, const SumArrays<T>& arrays, int64_t splits,
                        const Alpha& alpha, int64_t split_stride) {
  constexpr int kVector = kVectorElements<T>;
  const bool reduced_is_fastest =
      reduced_layout.rank > 0 &&
      (kept_layout.rank == 0 || reduced_layout.strides[0][0] < kept_layout.strides[0][0]);
  const auto run = [&](auto kept_elements, auto reduced_elements, auto index,
                       const Layout<2>& kept_accesses, const Layout<1>& reduced_accesses) {
    using Index = decltype(index);
    const SumShape shape =
        sum_shape(kept_accesses.numel, reduced_accesses.numel, splits, reduced_is_fastest);
    for (const auto& [elements, kept_strides] : kept_accesses.template slices<Index>()) {
      constexpr auto kKernel = Kernels::template kernel<T, Index, decltype(kept_elements)::value,
                                                        decltype(reduced_elements)::value>();
      planner.add<kKernel>(
          {dim3(blocks_for(elements, shape.columns), static_cast<unsigned>(splits)), kSumThreads},
          shape, elements, reduced_accesses.numel, kept_strides,
          reduced_accesses.template device_strides<Index>(), arrays.grad, alpha, arrays.out,
          arrays.out_dtype, kept_layout.rank > 0 ? kept_layout.strides[0][1] : 0, split_stride);
    }
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
  if (arrays.is_aligned && !reduced_is_fastest && kept_layout.has_vectors(0, kVector) &&
      reduced_layout.has_multiples(0, kVector, 0)) {
    with_index(vector, one, kept_layout.in_vectors(kVector), reduced_layout);
  } else if (arrays.is_aligned && reduced_is_fastest && reduced_layout.has_vectors(0, kVector) &&
             kept_layout.has_multiples(0, kVector, 0)) {
    with_index(one, vector, kept_layout, reduced_layout.in_vectors(kVector));
  } else {
    with_index(one, one, kept_layout, reduced_layout);
  }
}

// Plans Kernels::kernel<T, Index, kKept, kReduced>(): out = alpha * grad_output, summed to the
// shape of `out`.
template <typename T, typename Kernels, typename Alpha>
void launch_sum(Planner& planner, const Operand& grad_output, const Alpha& alpha,
                const Operand& out) {
  using Value = compute_t<T>;
  const Operand kept_grad = select_dimensions(grad_output, out, true);
  const Operand kept_out = select_dimensions(out, grad_output, true);
  const Operand reduced_grad = select_dimensions(grad_output, out, false);
  const Layout<2> kept_layout({&kept_grad, &kept_out});
  const Layout<1> reduced_layout({&reduced_grad});
  const int64_t splits = sum_splits(planner, grad_output, out);
  SumArrays<T> arrays{grad_output.as<const T>(), grad_output.is_aligned(), out.as<void>(),
                      out.dtype};
  planner.plan.variant = splits == 1 ? "sum" : "sum, split";
  if (splits == 1) {
    launch_part_of_sum<T, Kernels>(planner, kept_layout, reduced_layout, arrays, 1, alpha, 0);
    return;
  }
  // The partial sums lie in the order of the kept elements: one row of them per split. They are
  // behind the scratch of steps before, whose counters stay zero.
  const int64_t before =
      (planner.plan.scratch.bytes + kScratchBytes - 1) / kScratchBytes * kScratchBytes;
  const int64_t bytes = splits * out.numel * static_cast<int64_t>(sizeof(Value));
  const auto partials = planner.need({before + bytes}) + before;
  Layout<2> to_partials = kept_layout, from_partials = kept_layout;
  int64_t step = 1;
  for (int d = 0; d < kept_layout.rank; ++d) {
    to_partials.strides[d][1] = step;
    from_partials.strides[d][0] = step;
    step *= kept_layout.sizes[d];
  }
  Operand rows;
  rows.rank = 1;
  rows.sizes[0] = splits;
  rows.strides[0] = kept_layout.numel;
  arrays.out = partials.template as<void>(), arrays.out_dtype = kDType<Value>;
  launch_part_of_sum<T, Kernels>(planner, to_partials, reduced_layout, arrays, splits, Value{1},
                                 kept_layout.numel);
  const SumArrays<Value> of_rows{partials.template as<const Value>(), true, out.as<void>(),
                                 out.dtype};
  launch_part_of_sum<Value, Kernels>(planner, from_partials, Layout<1>({&rows}), of_rows, 1, alpha,
                                     0);
}

// Plans out = the sum of `grad_output` to the shape of `out`. csrc/ops/add.cu has it, with the
// kernels.
void plan_sum(Planner& planner, const Operand& grad_output, const Operand& out);

}  // namespace diglot
