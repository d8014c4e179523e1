// Products whose operands TMA loads in many layouts, all of them right: panels by one box, core
// matrices by a box, lines of pixels. For tests/test_layouts_of_tiles.py. `in` holds A, by rows,
// and then B: by rows of K, or by columns.
#include "diglot/mma/tma.cuh"
#include "diglot/mma/wgmma.cuh"
#include "diglot/types.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

// A tensor in memory, and the box of it that a load takes.
struct Boxes {
  std::vector<uint64_t> shape, strides;  // elements, bytes
  std::vector<uint32_t> box;
};

template <MmaType kType>
constexpr TensorType kElement = bytes_of(kType) == 1 ? TensorType::kUint8 : TensorType::kBfloat16;

// A tile of kMn rows of A, or columns of B, by one box of panels of a line each.
template <MmaType kT, Major kM, Swizzle kS, int kMn, int kK>
struct OneBox {
  static constexpr MmaType kType = kT;
  static constexpr Major kMajor = kM;
  static constexpr Swizzle kSwizzle = kS;
  static constexpr int kBoxes = 1;
  using Tile = SmemTile<kT, kM, kS, kMn, kK>;
  static Boxes boxes() {
    constexpr uint32_t kLine = Tile::kLineElements;
    constexpr uint32_t kAlong = kM == Major::kK ? kK : kMn, kAcross = kM == Major::kK ? kMn : kK;
    const std::vector<uint32_t> box = {kLine, kAcross, kAlong / kLine};
    return {{box.begin(), box.end()}, {kAlong * bytes_of(kT), Tile::kLineBytes}, box};
  }
  static DIGLOT_DEVICE Coordinates at(int) { return {0, 0, 0}; }
  static DIGLOT_DEVICE uint64_t descriptor(uint32_t address, int k) {
    return Tile::descriptor(address, 0, k);
  }
};

// K is contiguous, or M or N is.
template <MmaType kT, Swizzle kS, int kMn, int kK>
using Panels = OneBox<kT, Major::kK, kS, kMn, kK>;
template <Swizzle kS, int kMn, int kK>
using Columns = OneBox<MmaType::kBfloat16, Major::kMn, kS, kMn, kK>;

// The same, by a box for each half of the rows: each of them of one panel.
template <int kMn, int kK>
struct Halves : Panels<MmaType::kBfloat16, Swizzle::k128, kMn, kK> {
  static constexpr int kBoxes = 2;
  static Boxes boxes() { return {{kK, kMn}, {2 * kK}, {kK, kMn / 2}}; }
  static DIGLOT_DEVICE Coordinates at(int box) { return {0, box * kMn / 2}; }
};

// Core matrices of 8 rows of 16 bytes, those of neighbouring K one after the other.
template <int kMn, int kK>
struct Cores {
  static constexpr MmaType kType = MmaType::kBfloat16;
  static constexpr Major kMajor = Major::kK;
  static constexpr Swizzle kSwizzle = Swizzle::kNone;
  static constexpr int kBoxes = 1;
  struct Tile {
    static constexpr int kBytes = 2 * kMn * kK;
  };
  static Boxes boxes() {
    return {{8, 8, kK / 8, kMn / 8}, {2 * kK, 16, 16 * kK}, {8, 8, kK / 8, kMn / 8}};
  }
  static DIGLOT_DEVICE Coordinates at(int) { return {0, 0, 0, 0}; }
  static DIGLOT_DEVICE uint64_t descriptor(uint32_t address, int k) {
    return matrix_descriptor(address + k / 8 * 128, 128, kK / 8 * 128, Swizzle::kNone);
  }
};

// Rows are the pixels of an image of 8 x 8 within a wider one, of 10 columns.
struct Pixels : Panels<MmaType::kBfloat16, Swizzle::k128, 64, 64> {
  static Boxes boxes() { return {{64, 10, 8}, {128, 1280}, {64, 8, 8}}; }
  static DIGLOT_DEVICE Coordinates at(int) { return {0, 1, 0}; }
};

template <typename A, typename B, int kN, int kK>
__global__ void __launch_bounds__(128)
    multiply(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* out) {
  extern __shared__ __align__(1024) char memory[];
  char *const tile_a = memory, *const tile_b = memory + A::Tile::kBytes;
  __shared__ Mbarrier full;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    full.init(1);
    fence_mbarrier_init();
    full.arrive_expect(A::Tile::kBytes + B::Tile::kBytes);
    for (int i = 0; i < A::kBoxes; ++i) {
      tma_load(a, tile_a + i * A::Tile::kBytes / A::kBoxes, full, A::at(i));
    }
    for (int i = 0; i < B::kBoxes; ++i) {
      tma_load(b, tile_b + i * B::Tile::kBytes / B::kBoxes, full, B::at(i));
    }
  }
  __syncthreads();
  full.wait(0);
  float sums[kN / 2];
  fence_accumulators(sums);
  wgmma_fence();
  for (int k = 0; k < kK; k += depth_of(A::kType)) {
    wgmma<A::kType, B::kType, A::kMajor, B::kMajor>(sums, A::descriptor(shared_address(tile_a), k),
                                                    B::descriptor(shared_address(tile_b), k),
                                                    k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(sums);
  DIGLOT_UNROLL
  for (int i = 0; i < kN / 2; ++i) {
    out[accumulator_row(thread, i) * kN + accumulator_column(thread, i)] = sums[i];
  }
}

template <typename Operand>
TensorMap map_of(const char* memory) {
  const Boxes boxes = Operand::boxes();
  TensorDescription tensor;
  tensor.type = kElement<Operand::kType>;
  tensor.address = memory;
  tensor.shape = boxes.shape;
  tensor.strides = boxes.strides;
  tensor.box = boxes.box;
  tensor.swizzle = Operand::kSwizzle;
  return tensor_map(tensor);
}

// The test gives a block for each element of `out`, and where B begins.
template <typename A, typename B, int kN, int kK, int kBeginB = 64 * kK * bytes_of(A::kType)>
constexpr Start start_product = [](const Launch& how, const float* in, float* out) {
  const auto* const bytes = reinterpret_cast<const char*>(in);
  Launch one = how;
  one.grid.x = 1;
  launch<multiply<A, B, kN, kK>>(one, nullptr, map_of<A>(bytes), map_of<B>(bytes + kBeginB), out);
};

constexpr auto kBf16 = MmaType::kBfloat16, kE4m3 = MmaType::kE4m3;
template <Swizzle kSwizzle, int kMn, int kK>
using Fp8 = Panels<kE4m3, kSwizzle, kMn, kK>;
template <Swizzle kSwizzle, int kMn, int kK>
using Rows = Panels<kBf16, kSwizzle, kMn, kK>;
constexpr auto kNone = Swizzle::kNone, k32 = Swizzle::k32, k64 = Swizzle::k64, k128 = Swizzle::k128;

const std::vector<Entry> kernels = {
    {"panels", start_product<Rows<k128, 64, 128>, Rows<k64, 64, 128>, 64, 128>},
    {"fp8", start_product<Fp8<k64, 64, 128>, Fp8<k32, 64, 128>, 64, 128>},
    {"columns", start_product<Columns<k128, 64, 64>, Columns<k128, 128, 64>, 128, 64>},
    {"narrow_columns", start_product<Columns<k32, 64, 64>, Columns<k64, 128, 64>, 128, 64>},
    {"halves", start_product<Rows<k128, 64, 64>, Halves<256, 64>, 256, 64>},
    {"chunks", start_product<Rows<kNone, 64, 64>, Columns<kNone, 64, 64>, 64, 64>},
    {"cores", start_product<Cores<64, 64>, Cores<64, 64>, 64, 64>},
    {"pixels", start_product<Pixels, Rows<k128, 64, 64>, 64, 64, 128 * 80>},
};

}  // namespace planted
