// Step 2: a block computes 128 x 128 elements of C, from tiles of A and B in shared memory.
//
// A tile is read from global memory once, and used 128 times. A thread computes 8 x 8 elements in
// registers. So 64 multiply-adds need two loads of 8 elements each, not 128 loads.
//
// Prediction: shared memory now serves more than the CUDA cores take, and they are the limit: 128
// multiply-adds a cycle and SM. Tensor cores would make 16 times as many.
#include "steps.h"

namespace step2 {

using namespace ladder;

constexpr int kTile = 128, kTileDepth = 16;
constexpr int kPart = 8;  // rows and columns of a thread; also elements of an access of 16 bytes
constexpr int kSide = kTile / kPart;  // threads along each side
constexpr int kThreads = kSide * kSide;
using Part = Vector<bfloat16, kPart>;

struct Tiles {
  alignas(16) bfloat16 a[kTileDepth][kTile];  // transposed, so that a thread's rows are neighbours
  alignas(16) bfloat16 b[kTileDepth][kTile];
};

// Eight elements of a row, or zeros outside the matrix.
DIGLOT_DEVICE Part load_part(const bfloat16* matrix, int rows, int columns, int row, int column) {
  if (row < rows && column < columns) {
    return load_vector<bfloat16, kPart>(matrix + int64_t{row} * columns + column);
  }
  Part zeros;
  for (bfloat16& element : zeros.elements) element = convert<bfloat16>(0.0f);
  return zeros;
}

__global__ void __launch_bounds__(kThreads) multiply_tiles(const Product product) {
  __shared__ Tiles tiles;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y) * kTile,
            column = static_cast<int>(blockIdx.x) * kTile;
  const int part_row = thread / kSide * kPart, part_column = thread % kSide * kPart;
  const int load_row = thread / 2, load_depth = thread % 2 * kPart;  // of A
  float sums[kPart][kPart] = {};
  for (int depth = 0; depth < product.k; depth += kTileDepth) {
    const Part a = load_part(product.a, product.m, product.k, row + load_row, depth + load_depth);
    const Part b =
        load_part(product.b, product.k, product.n, depth + thread / kSide, column + part_column);
    DIGLOT_UNROLL
    for (int i = 0; i < kPart; ++i) tiles.a[load_depth + i][load_row] = a[i];
    memcpy(&tiles.b[thread / kSide][part_column], &b, sizeof(b));
    __syncthreads();  // the tiles are there
    DIGLOT_UNROLL
    for (int k = 0; k < kTileDepth; ++k) {
      const Part left = load_vector<bfloat16, kPart>(&tiles.a[k][part_row]);
      const Part right = load_vector<bfloat16, kPart>(&tiles.b[k][part_column]);
      DIGLOT_UNROLL
      for (int i = 0; i < kPart; ++i) {
        DIGLOT_UNROLL
        for (int j = 0; j < kPart; ++j) {
          sums[i][j] = diglot::fma(convert<float>(left[i]), convert<float>(right[j]), sums[i][j]);
        }
      }
    }
    __syncthreads();  // all have read them
  }
  DIGLOT_UNROLL
  for (int i = 0; i < kPart; ++i) {
    const int line = row + part_row + i, first = column + part_column;
    if (line >= product.m || first >= product.n) continue;
    uint32_t words[kPart / 2];
    DIGLOT_UNROLL
    for (int j = 0; j < kPart; j += 2) words[j / 2] = pack(sums[i][j], sums[i][j + 1]);
    memcpy(product.c + int64_t{line} * product.n + first, words, sizeof(words));
  }
}

void multiply(const Product& product, cudaStream_t stream) {
  const auto columns = static_cast<unsigned>(tiles_of(product.n, kTile));
  const auto rows = static_cast<unsigned>(tiles_of(product.m, kTile));
  launch<multiply_tiles>(dim3(columns, rows), dim3(kThreads), stream, product);
}

}  // namespace step2
