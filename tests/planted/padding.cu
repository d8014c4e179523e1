// Kernels that read rows whose ends are padding, in each way that a kernel can. For the interpreter
// alone, which the launch tells of the padding, and tests/test_padding.py.
#include "diglot/mma/tma.cuh"
#include "diglot/vector_access.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;
using interpreter::Range;

constexpr int kRows = 4, kRow = 20, kPitch = 32;  // elements of `in` and of `out`

// Each thread sums a row's first kCount elements.
template <int kCount>
__global__ void read_values(const float* in, float* out) {
  const int row = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = 0; i < kCount; ++i) sum += in[row * kPitch + i];
  out[row * kPitch] = sum;
}

template <int kCount>
__global__ void copy_values(const float* in, float* out) {
  __shared__ __align__(16) float values[kRows][kPitch];
  const int row = static_cast<int>(threadIdx.x);
  for (int i = 0; i < kCount; i += 4) {
    copy_async(reinterpret_cast<uint4*>(&values[row][i]), in + row * kPitch + i);
  }
  wait_for_copies();
  out[row * kPitch] = values[row][kCount - 1];
}

template <int kCount>
__global__ void load_row(const float* in, float* out) {
  __shared__ __align__(128) float row[2 * kPitch];
  __shared__ Mbarrier full;
  if (threadIdx.x != 0) return;
  full.init(1);
  fence_mbarrier_init();
  full.arrive_expect(sizeof(float) * kCount);
  bulk_load(row, in + kPitch, sizeof(float) * kCount, full);
  full.wait(0);
  out[0] = row[kCount - 1];
}

// The box has whole rows; what lies outside the map's shape is filled with zeros.
__global__ void load_box(const __grid_constant__ TensorMap map, float* out) {
  __shared__ __align__(128) float box[kRows][kPitch];
  __shared__ Mbarrier full;
  if (threadIdx.x != 0) return;
  full.init(1);
  fence_mbarrier_init();
  full.arrive_expect(sizeof(box));
  tma_load(map, box, full, {0, 0});
  full.wait(0);
  out[0] = box[0][kRow];
}

__global__ void write_padding(const float*, float* out) { out[kRow] = 1; }
__global__ void add_to_padding(const float*, float* out) { atomicAdd(&out[kRow], 1.0f); }

std::vector<Range> rows_of(const float* in, const float* out, int row, int pitch) {
  const auto range = [=](const float* begin, bool is_writable) {
    return Range{reinterpret_cast<const char*>(begin),
                 reinterpret_cast<const char*>(begin + kRows * kPitch), is_writable,
                 sizeof(float) * row, sizeof(float) * pitch};
  };
  return {range(in, false), range(out, true)};
}

// The test gives a block for each element of `out`.
template <auto kKernel, int kWidth = kRow, int kStep = kPitch>
constexpr Start start_padded = [](const Launch& how, const float* in, float* out) {
  const interpreter::Arguments scope(rows_of(in, out, kWidth, kStep));
  Launch one = how;
  one.grid.x = 1;
  launch<kKernel>(one, nullptr, in, out);
};

template <int kColumns>
constexpr Start start_box = [](const Launch& how, const float* in, float* out) {
  const interpreter::Arguments scope(rows_of(in, out, kRow, kPitch));
  TensorDescription tensor;
  tensor.type = TensorType::kFloat32;
  tensor.address = in;
  tensor.shape = {kColumns, kRows};
  tensor.strides = {sizeof(float) * kPitch};
  tensor.box = {kPitch, kRows};
  Launch one = how;
  one.grid.x = 1;
  launch<load_box>(one, nullptr, tensor_map(tensor), out);
};

const std::vector<Entry> kernels = {
    {"read_values", start_padded<read_values<kRow>>},
    {"read_beyond", start_padded<read_values<kRow + 1>>},
    {"copy_values", start_padded<copy_values<kRow>>},
    {"copy_beyond", start_padded<copy_values<kRow + 4>>},
    {"load_row", start_padded<load_row<kRow>>},
    {"load_beyond", start_padded<load_row<kPitch>>},
    {"load_next_row", start_padded<load_row<kPitch + kRow>>},
    {"load_box", start_box<kRow>},
    {"load_wide_box", start_box<kPitch>},
    {"write_padding", start_padded<write_padding>},
    {"add_to_padding", start_padded<add_to_padding>},
    {"no_padding", start_padded<read_values<kPitch>, kPitch>},
    {"long_rows", start_padded<read_values<kRow>, kPitch, kRow>},
};

}  // namespace planted
