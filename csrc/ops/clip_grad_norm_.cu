// The norm of many gradients, taken as one vector, and their scaling by it, in one launch: kernel,
// launcher, registration. Twin of triton_ops/clip_grad_norm_.py.
#include <limits>
#include <stdexcept>

#include "diglot/chunks.cuh"
#include "diglot/launch/dispatch.h"
#include "diglot/launch/plan.h"
#include "diglot/math.cuh"
#include "diglot/sync/grid_barrier.cuh"
#include "torch/launcher.h"

namespace diglot {

constexpr int kClipThreads = 256;
constexpr int kClipWarps = kClipThreads / 32;
constexpr int kClipBlocks = 4;    // per SM
constexpr int kClipAccesses = 4;  // 16-byte accesses that a thread has in flight
constexpr int kPartialLoads = 8;  // partial results that a thread has in flight
constexpr int kBatch = 8;         // chunks between two barriers of a block

// A norm as a fold over elements that begins with 0: add() an element, combine() two folds,
// finish() the fold of all.
struct SumNorm {
  template <typename Value>
  DIGLOT_DEVICE static Value add(Value fold, Value x) {
    return fold + absolute(x);
  }
  template <typename Value>
  DIGLOT_DEVICE static Value combine(Value a, Value b) {
    return a + b;
  }
  template <typename Value>
  DIGLOT_DEVICE static Value finish(Value fold) {
    return fold;
  }
};
struct EuclideanNorm : SumNorm {
  template <typename Value>
  DIGLOT_DEVICE static Value add(Value fold, Value x) {
    return fma(x, x, fold);
  }
  template <typename Value>
  DIGLOT_DEVICE static Value finish(Value fold) {
    return square_root(fold);
  }
};
struct MaximumNorm : SumNorm {
  template <typename Value>
  DIGLOT_DEVICE static Value add(Value fold, Value x) {
    return maximum(fold, absolute(x));
  }
  template <typename Value>
  DIGLOT_DEVICE static Value combine(Value a, Value b) {
    return maximum(a, b);
  }
};

// Every lane of a warp gets the fold of all lanes.
template <typename Norm, typename Value>
DIGLOT_DEVICE Value fold_warp(Value fold) {
  DIGLOT_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    fold = Norm::combine(fold, __shfl_xor_sync(0xffffffffu, fold, lanes));
  }
  return fold;
}

// The combined fold of a block's warps, from shared memory.
template <typename Norm, typename Value>
DIGLOT_DEVICE Value fold_warps(const Value (&warp_folds)[kClipWarps]) {
  Value fold = warp_folds[0];
  DIGLOT_UNROLL
  for (int warp = 1; warp < kClipWarps; ++warp) fold = Norm::combine(fold, warp_folds[warp]);
  return fold;
}

// This thread's part of the fold of a chunk.
template <typename Norm, typename T>
DIGLOT_DEVICE compute_t<T> fold_elements(T* data, int count) {
  using Value = compute_t<T>;
  constexpr int kElements = kAccessBytes / sizeof(T);
  Value folds[kElements] = {};
  walk_chunk<kClipThreads, kClipAccesses>(
      data, count,
      [&](const T* first, auto number) {
        Vector<T, kElements> loaded[decltype(number)::value];
        DIGLOT_UNROLL
        for (int a = 0; a < number; ++a) {
          loaded[a] = load_vector<T, kElements>(first + a * kClipThreads * kElements);
        }
        DIGLOT_UNROLL
        for (int a = 0; a < number; ++a) {
          DIGLOT_UNROLL
          for (int e = 0; e < kElements; ++e) {
            folds[e] = Norm::add(folds[e], convert<Value>(loaded[a][e]));
          }
        }
      },
      [&](const T* x) { folds[0] = Norm::add(folds[0], convert<Value>(*x)); });
  DIGLOT_UNROLL
  for (int half = kElements / 2; half > 0; half /= 2) {
    DIGLOT_UNROLL
    for (int e = 0; e < half; ++e) folds[e] = Norm::combine(folds[e], folds[e + half]);
  }
  return folds[0];
}

// This thread's part of a chunk's scaling.
template <typename T>
DIGLOT_DEVICE void scale_elements(T* data, int count, compute_t<T> coefficient) {
  using Value = compute_t<T>;
  constexpr int kElements = kAccessBytes / sizeof(T);
  const auto scaled = [&](T x) { return convert<T>(coefficient * convert<Value>(x)); };
  walk_chunk<kClipThreads, kClipAccesses>(
      data, count,
      [&](T* first, auto number) {
        Vector<T, kElements> loaded[decltype(number)::value];
        DIGLOT_UNROLL
        for (int a = 0; a < number; ++a) {
          loaded[a] = load_vector<T, kElements>(first + a * kClipThreads * kElements);
        }
        DIGLOT_UNROLL
        for (int a = 0; a < number; ++a) {
          DIGLOT_UNROLL
          for (int e = 0; e < kElements; ++e) loaded[a][e] = scaled(loaded[a][e]);
          store_vector(first + a * kClipThreads * kElements, loaded[a]);
        }
      },
      [&](T* x) { *x = scaled(*x); });
}

// partials[chunk] = the fold of the chunk, for this block's chunks. It depends only on the chunk.
// Warps leave their folds in shared memory and go on; they meet once in kBatch chunks.
template <typename Norm, typename Value>
DIGLOT_DEVICE void fold_chunks(const int64_t* table, int64_t chunks, Value* partials) {
  __shared__ Value folds[kBatch][kClipWarps];
  int64_t index = blockIdx.x;
  Chunk chunk = read_chunk(table, chunks, index);
  while (index < chunks) {
    const int64_t first = index;
    int batch = 0;
    for (; batch < kBatch && index < chunks; ++batch) {
      index += gridDim.x;
      const Chunk next = read_chunk(table, chunks, index);  // on its way while this chunk is folded
      const Value fold = fold_warp<Norm>(with_data<Value>(chunk, [&](auto* data) {
        return static_cast<Value>(fold_elements<Norm>(data, chunk.count));
      }));
      if (threadIdx.x % 32 == 0) folds[batch][threadIdx.x / 32] = fold;
      chunk = next;
    }
    __syncthreads();
    if (threadIdx.x < batch) {
      partials[first + static_cast<int64_t>(threadIdx.x) * gridDim.x] =
          fold_warps<Norm>(folds[threadIdx.x]);
    }
    __syncthreads();
  }
}

// The fold of all partial results. Every block computes it, in the same order.
template <typename Norm, typename Value>
DIGLOT_DEVICE Value fold_partials(int64_t chunks, const Value* partials) {
  __shared__ Value folds[kClipWarps];
  Value fold{0};
  for (int64_t first = threadIdx.x; first < chunks; first += kPartialLoads * kClipThreads) {
    Value loaded[kPartialLoads];
    DIGLOT_UNROLL
    for (int i = 0; i < kPartialLoads; ++i) {
      const int64_t chunk = first + i * kClipThreads;
      loaded[i] = chunk < chunks ? partials[chunk] : Value{0};
    }
    DIGLOT_UNROLL
    for (int i = 0; i < kPartialLoads; ++i) fold = Norm::combine(fold, loaded[i]);
  }
  fold = fold_warp<Norm>(fold);
  if (threadIdx.x % 32 == 0) folds[threadIdx.x / 32] = fold;
  __syncthreads();
  return fold_warps<Norm>(folds);
}

// Scales this block's chunks from the last one on: the chunks read last are still in the cache.
template <typename Value>
DIGLOT_DEVICE void scale_chunks(const int64_t* table, int64_t chunks, Value coefficient) {
  const int64_t rounds = (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x;
  int64_t index = blockIdx.x + (rounds - 1) * gridDim.x;
  Chunk chunk = read_chunk(table, chunks, index);
  for (; index >= 0; index -= gridDim.x) {
    const Chunk next = read_chunk(table, chunks, index - gridDim.x);
    if (!chunk.is_repeated) {
      with_data<Value>(chunk, [&](auto* data) {
        using T = std::remove_pointer_t<decltype(data)>;
        scale_elements(data, chunk.count, static_cast<compute_t<T>>(coefficient));
      });
    }
    chunk = next;
  }
}

// `value` rounded to an element type.
template <typename Value>
DIGLOT_DEVICE Value rounded_to(DType dtype, Value value) {
  switch (dtype) {
    case DType::kFloat16: return convert<Value>(convert<float16>(value));
    case DType::kBFloat16: return convert<Value>(convert<bfloat16>(value));
    default: return value;
  }
}

// `partials` has an element for each chunk. The norm goes to `total`.
template <typename Norm, typename Value>
__global__ void __launch_bounds__(kClipThreads, kClipBlocks)
    clip_grad_norm_phases(const int64_t* table, int64_t chunks, Value* partials,
                          uint32_t* barrier_state, Value max_norm, bool error_if_nonfinite,
                          void* total, DType total_dtype) {
  fold_chunks<Norm>(table, chunks, partials);
  GridBarrier(barrier_state).sync();
  const Value norm = Norm::finish(fold_partials<Norm>(chunks, partials));
  if (blockIdx.x == 0 && threadIdx.x == 0) store_as(total, 0, total_dtype, norm);
  const Value coefficient =
      minimum(max_norm / (norm + static_cast<Value>(1e-6)), static_cast<Value>(1));
  if (coefficient == 1) return;
  const Value seen = rounded_to(total_dtype, norm);
  if (error_if_nonfinite && !(seen - seen == 0)) return;  // infinite or NaN
  scale_chunks(table, chunks, coefficient);
}

}  // namespace diglot

namespace {

using namespace diglot;

// Calls function(norm, value) with the types of a norm and of its computation.
template <typename Function>
void dispatch_norm(double norm_type, DType dtype, Function function) {
  const auto with_value = [&](auto norm) {
    if (dtype == DType::kFloat64) {
      function(norm, double{});
    } else {
      function(norm, float{});
    }
  };
  if (norm_type == 1) return with_value(SumNorm{});
  if (norm_type == 2) return with_value(EuclideanNorm{});
  if (norm_type == std::numeric_limits<double>::infinity()) return with_value(MaximumNorm{});
  throw std::invalid_argument("clip_grad_norm: norm_type must be 1, 2 or infinity");
}

// Scales `grads` in place and writes their norm to `total`. The kernel finds the gradients by
// `table` alone. It runs `blocks` blocks; 0 leaves the number to the planner.
void clip_grad_norm(Planner& planner, TensorList, const Operand& table, Real max_norm,
                    double norm_type, bool error_if_nonfinite, int64_t blocks,
                    const Operand& total) {
  const int64_t chunks = table.numel / 2;
  dispatch_norm(norm_type, total.dtype, [&](auto norm, auto value) {
    using Value = decltype(value);
    const auto bytes = kBarrierBytes + chunks * static_cast<int64_t>(sizeof(Value));
    const auto scratch = planner.need({bytes, kBarrierBytes, Lifetime::kStream});
    planner.add_cooperatively<clip_grad_norm_phases<decltype(norm), Value>>(
        blocks > 0 ? blocks : chunks, static_cast<int>(planner.tuned(Tunable::kClipBlocks)),
        kClipThreads, 0, table.as<const int64_t>(), chunks, (scratch + kBarrierBytes).as<Value>(),
        scratch.as<uint32_t>(), max_norm.as<Value>(), error_if_nonfinite, total.as<void>(),
        total.dtype);
  });
  planner.plan.variant = "one launch";
}

DIGLOT_LAUNCHER(clip_grad_norm,
                "(Tensor(a!)[] grads, Tensor table, float max_norm, float norm_type, "
                "bool error_if_nonfinite, int blocks, Tensor(b!) total, Tensor(z!)? scratch) "
                "-> ()")

}  // namespace
