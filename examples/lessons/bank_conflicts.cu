// A transpose with and without conflicts of shared memory's banks. Twin of the kernel in
// bank_conflicts.py.
#include "lesson.h"

namespace {

constexpr int kTile = 32;      // a warp is a row of a tile
constexpr int kTileWarps = 8;  // of a block, which takes the tile's rows in turns

// Reads are along rows, writes along columns: of the 32 writes of a warp no two are neighbours.
__global__ void __launch_bounds__(kTile* kTileWarps)
    transpose_kernel(int64_t rows, int64_t columns, const float* in, float* out) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x;
  for (int step = threadIdx.y; step < kTile; step += kTileWarps) {
    const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile + step;
    out[column * rows + row] = in[row * columns + column];
  }
}

// Both along rows, through shared memory, from which a column is read. Its elements are kPitch
// words apart: where that is 32 they all lie in one of the 32 banks, and are read one by one. With
// kSwizzle a row's elements change places, by an XOR with the row's number, and no word is unused.
template <int kPitch, bool kSwizzle>
__global__ void __launch_bounds__(kTile* kTileWarps)
    transpose_by_tile(int64_t rows, int64_t columns, const float* in, float* out) {
  __shared__ float tile[kTile][kPitch];
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int lane = threadIdx.x;
  for (int step = threadIdx.y; step < kTile; step += kTileWarps) {
    tile[step][kSwizzle ? lane ^ step : lane] =
        in[(first_row + step) * columns + first_column + lane];
  }
  __syncthreads();
  for (int step = threadIdx.y; step < kTile; step += kTileWarps) {
    out[(first_column + step) * rows + first_row + lane] =
        tile[lane][kSwizzle ? step ^ lane : step];
  }
}

}  // namespace

// out[column][row] = in[row][column]; rows and columns are multiples of 32. The ways: 0 straight
// from memory to memory, else by a tile of 1 rows of 32 words, 2 rows of 33, 3 swizzled rows.
LESSON transpose(int way, int rows, int columns, const float* in, float* out, void* stream) {
  return guarded([&] {
    const dim3 grid(columns / kTile, rows / kTile);
    const dim3 block(kTile, kTileWarps);
    const auto on = static_cast<cudaStream_t>(stream);
    switch (way) {
      case 0: return diglot::launch<transpose_kernel>(grid, block, on, rows, columns, in, out);
      case 1:
        return diglot::launch<transpose_by_tile<kTile, false>>(grid, block, on, rows, columns, in,
                                                               out);
      case 2:
        return diglot::launch<transpose_by_tile<kTile + 1, false>>(grid, block, on, rows, columns,
                                                                   in, out);
      default:
        return diglot::launch<transpose_by_tile<kTile, true>>(grid, block, on, rows, columns, in,
                                                              out);
    }
  });
}
