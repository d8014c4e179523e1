// A padded copy, for tests/test_unaligned_products.py, which gives the header that this includes
// some faults. `in` holds 16-bit elements: lines of kInner, kPitch apart, from the second element
// on. `out` gets the copy.
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

// The test gives a block for each float of `out`.
constexpr Start start_copy = [](const Launch&, const float* in, float* out) {
  const PaddedCopy lines{kInner, kOuter, 1, kPitch, kCopyPitch, 1, {}, {2, 1, 1, 1}};
  launch<copy>({2, Shape::kThreads}, nullptr, reinterpret_cast<const uint16_t*>(in) + 1,
               reinterpret_cast<uint16_t*>(out), lines);
};

const std::vector<Entry> kernels = {{"11x307", start_copy}};

}  // namespace planted
