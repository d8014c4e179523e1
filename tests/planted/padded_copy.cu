// Padded copies, for tests/test_unaligned_products.py and tests/test_tf32.py, which give the header
// that this includes some faults. `out` gets the copy.
#include "diglot/products/padded_copy.cuh"

#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kOuter = 11, kInner = 307, kPitch = 309, kCopyPitch = 320;
using Shape = LinesShape<uint16_t>;

__global__ void __launch_bounds__(Shape::kThreads)
    copy(const uint16_t* from, uint16_t* to, PaddedCopy lines) {
  copy_lines(from, to, lines);
}

__global__ void __launch_bounds__(TransposedShape::kThreads)
    copy_columns(const float* from, float* to, PaddedCopy lines) {
  copy_transposed(from, to, lines);
}

// `in` holds 16-bit elements: lines of kInner, kPitch apart, from the second element on. The tests
// give a block for each float of `out`.
constexpr Start start_copy = [](const Launch&, const float* in, float* out) {
  const PaddedCopy lines{kInner, kOuter, 1, kPitch, kCopyPitch, 1, {}, {2, 1, 1, 1}};
  launch<copy>({2, Shape::kThreads}, nullptr, reinterpret_cast<const uint16_t*>(in) + 1,
               reinterpret_cast<uint16_t*>(out), lines);
};

// `in` holds a matrix of 41 rows and 37 columns, which become lines.
constexpr Start start_transposed = [](const Launch&, const float* in, float* out) {
  const PaddedCopy lines{41, 37, 37, 1, 64, 1, {}, {2, 2, 1, 1}};
  launch<copy_columns>({4, TransposedShape::kThreads}, nullptr, in, out, lines);
};

const std::vector<Entry> kernels = {{"11x307", start_copy}, {"transposed", start_transposed}};

}  // namespace planted
