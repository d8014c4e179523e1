// Dropout: kernels, launchers, registration. Twin of triton_ops/dropout.py.
#include "diglot/dispatch.h"
#include "diglot/elementwise_launch.h"
#include "diglot/philox.cuh"
#include "torch/launcher.h"

namespace diglot {

// The elements whose random bits reach `threshold`, times `scale`; the others times zero, which
// leaves NaN of NaN and infinities.
template <typename T>
struct Dropout {
  using Value = compute_t<T>;
  PhiloxKeys keys;
  uint64_t offset;
  uint32_t threshold;
  Value scale;

  template <int kElements>
  DIGLOT_DEVICE Vector<T, kElements> operator()(int64_t index,
                                                const Vector<T, kElements>& input) const {
    const auto bits = random_bits<kElements>(keys, offset, index);
    Vector<T, kElements> result;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      result[i] = convert<T>(convert<Value>(input[i]) * (bits[i] >= threshold ? scale : Value{0}));
    }
    return result;
  }
};

// Blocks that a multiprocessor is to hold at least: ten rounds take so many instructions that other
// warps' must go on while one waits, for which registers are limited; with fewer of them, the
// compiler would put off loads until late in the arithmetic.
template <typename T>
constexpr int kDropoutBlocks = sizeof(T) == 2 ? 12 : 10;

template <typename T, typename Shape>
__global__ void __launch_bounds__(kElementwiseThreads, kDropoutBlocks<T>)
    dropout_flat(int64_t n, int head, const T* input, const uint64_t* seed, uint64_t offset,
                 uint32_t threshold, compute_t<T> scale, T* output) {
  flat_map<Shape>(n, head, Dropout<T>{philox_keys(*seed), offset, threshold, scale}, output, input);
}

template <typename T, typename Shape, typename Index>
__global__ void __launch_bounds__(kElementwiseThreads)
    dropout_strided(int64_t n, Strides<3, Index> strides, const T* input, const uint64_t* seed,
                    uint64_t offset, uint32_t threshold, compute_t<T> scale, T* output) {
  strided_map<Shape>(n, strides, Dropout<T>{philox_keys(*seed), offset, threshold, scale}, output,
                     input);
}

constexpr int kPhiloxThreads = 128;

// A counter of four words and a key of two in each of n rows; four words in each row of the output.
__global__ void __launch_bounds__(kPhiloxThreads)
    philox_rows(int64_t n, const uint32_t* rows, uint32_t* output) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kPhiloxThreads + threadIdx.x;
  if (row >= n) return;
  const uint32_t* const in = rows + 6 * row;
  const PhiloxWords words = philox_4x32({in[0], in[1], in[2], in[3]}, philox_keys(in[4], in[5]));
  DIGLOT_UNROLL
  for (int w = 0; w < 4; ++w) output[4 * row + w] = words.of[w];
}

}  // namespace diglot

namespace {

using namespace diglot;

// Both directions are one function: the mask is that of the seed and the offset.
void dropout(const Stream& stream, const Operand& input, const Operand& seed, Number offset,
             Number threshold, Number scale, const Operand& out) {
  const Operand index = index_operand(out);
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto factor = scale.as<compute_t<T>>();
    elementwise_launch<T>(
        {&out, &input, &index},
        [&](auto shape, unsigned blocks, int64_t n, int head) {
          launch<dropout_flat<T, decltype(shape)>>(
              blocks, kElementwiseThreads, stream, n, head, input.as<const T>(),
              seed.as<const uint64_t>(), offset.integer, threshold.integer, factor, out.as<T>());
        },
        [&](auto shape, unsigned blocks, int64_t n, const auto& strides) {
          using Index = index_of<decltype(strides)>;
          launch<dropout_strided<T, decltype(shape), Index>>(
              blocks, kElementwiseThreads, stream, n, strides, input.as<const T>(),
              seed.as<const uint64_t>(), offset.integer, threshold.integer, factor, out.as<T>());
        });
  });
}

void dropout_forward(const Stream& stream, const Operand& input, const Operand& seed, Number offset,
                     Number threshold, Number scale, const Operand& out) {
  dropout(stream, input, seed, offset, threshold, scale, out);
}

void dropout_backward(const Stream& stream, const Operand& grad_output, const Operand& seed,
                      Number offset, Number threshold, Number scale, const Operand& out) {
  dropout(stream, grad_output, seed, offset, threshold, scale, out);
}

// Philox of given counters and keys. `rows` is int32 [n, 6], `out` int32 [n, 4], both contiguous.
void philox_words(const Stream& stream, const Operand& rows, const Operand& out) {
  const int64_t n = out.numel / 4;
  last_variant() = "a thread per row";
  if (n == 0) return;
  launch<philox_rows>(blocks_for(n, kPhiloxThreads), kPhiloxThreads, stream, n,
                      rows.as<const uint32_t>(), out.as<uint32_t>());
}

DIGLOT_LAUNCHER(dropout_forward,
                "(Tensor input, Tensor seed, float offset, int offset_integer, float threshold, "
                "int threshold_integer, float scale, int scale_integer, Tensor(a!) out, "
                "Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(dropout_backward,
                "(Tensor grad_output, Tensor seed, float offset, int offset_integer, "
                "float threshold, int threshold_integer, float scale, int scale_integer, "
                "Tensor(a!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(philox_words, "(Tensor rows, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
