// Starts copy_rows as the inputs of graphs do. For tests/test_copies.py, which describes the rows
// in the first values: how many there are, and of each six numbers of bytes.
#include "diglot/copies.cuh"

#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kHeader = 128;  // values before those that are copied

// Arrays of the host begin at a multiple of 16 bytes, as the GPU's do.
constexpr Start start_copies = [](const Launch& how, const float* in, float* out) {
  Copies copies{};
  const auto count = static_cast<unsigned>(in[0]);
  for (unsigned i = 0; i < count; ++i) {
    const float* const given = in + 1 + 6 * i;
    const auto number = [&](int k) { return static_cast<int64_t>(given[k]); };
    copies.each[i] = {reinterpret_cast<char*>(out) + number(0),
                      reinterpret_cast<const char*>(in + kHeader) + number(1),
                      number(2),
                      number(3),
                      number(4),
                      number(5)};
  }
  launch<copy_rows>({2, count}, kCopyThreads, nullptr, copies);
};

const std::vector<Entry> kernels = {{"copy_rows", start_copies}};

}  // namespace planted
