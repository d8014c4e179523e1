// Padded copies, for tests/test_unaligned_products.py and tests/test_tf32.py, which give the header
// that this includes some faults. `out` gets the copy.
#include "diglot/products/padded_copy.cuh"

#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kOuter = 11, kInner = 307, kPitch = 309, kCopyPitch = 320;

template <typename T>
__global__ void __launch_bounds__(kCopyThreads) copy(const T* from, T* to, PaddedCopy lines) {
  copy_tile(from, to, lines, blockIdx.x);
}

// `in` holds 16-bit elements: lines of kInner, kPitch apart, from the second element on. The tests
// give a block for each float of `out`.
constexpr Start start_copy = [](const Launch&, const float* in, float* out) {
  const PaddedCopy lines{kInner, kOuter, 1, kPitch, kCopyPitch, 1, {}, false, {3, 1, 1, 1}};
  launch<copy<uint16_t>>({3, kCopyThreads}, nullptr, reinterpret_cast<const uint16_t*>(in) + 1,
                         reinterpret_cast<uint16_t*>(out), lines);
};

// `in` holds a matrix of kInnerSide rows, kStep apart, and kOuterSide columns, which become lines.
template <typename T, int kOuterSide, int kInnerSide, int kStep, int kPitchOfCopy>
constexpr Start start_transposed = [](const Launch&, const float* in, float* out) {
  using Shape = TransposedShape<T>;
  constexpr int kRows = (kOuterSide + Shape::kRows - 1) / Shape::kRows;
  constexpr int kColumns = (kInnerSide + Shape::kColumns - 1) / Shape::kColumns;
  const PaddedCopy lines{
      kInnerSide, kOuterSide, kStep, 1, kPitchOfCopy, 1, {}, true, {kRows, kColumns, 1, 1}};
  launch<copy<T>>({kRows * kColumns, kCopyThreads}, nullptr, reinterpret_cast<const T*>(in),
                  reinterpret_cast<T*>(out), lines);
};

// Rows of the source begin at multiples of 16 bytes, or anywhere.
const std::vector<Entry> kernels = {
    {"11x307", start_copy},
    {"floats, aligned", start_transposed<uint32_t, 37, 41, 40, 64>},
    {"floats", start_transposed<uint32_t, 37, 41, 39, 64>},
    {"bytes, aligned", start_transposed<uint8_t, 70, 154, 80, 256>},
    {"bytes", start_transposed<uint8_t, 70, 160, 79, 256>},
};

}  // namespace planted
