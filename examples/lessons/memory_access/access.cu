// Reads near each other and far apart, and a transpose with and without bank conflicts. Without a
// GPU, diglot.interpreter compiles this file as it is. Twin of access_triton.py.
#include "access.h"

#include "diglot/launch/launch.h"

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    copy_strided_kernel(int64_t n, int64_t stride, const float* in, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t rows = n / stride;
  if (i < n) out[i] = in[i % rows * stride + i / rows];
}

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

// Both along rows, by way of shared memory, of which a column is read. Its elements are kPitch
// words apart: where that is 32 they all lie in one of the 32 banks, and are read one by one.
template <int kPitch>
__global__ void __launch_bounds__(kTile* kTileWarps)
    transpose_by_tile(int64_t rows, int64_t columns, const float* in, float* out) {
  __shared__ float tile[kTile][kPitch];
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int lane = threadIdx.x;
  for (int step = threadIdx.y; step < kTile; step += kTileWarps) {
    tile[step][lane] = in[(first_row + step) * columns + first_column + lane];
  }
  __syncthreads();
  for (int step = threadIdx.y; step < kTile; step += kTileWarps) {
    out[(first_column + step) * rows + first_row + lane] = tile[lane][step];
  }
}

}  // namespace

void copy_strided(std::int64_t n, std::int64_t stride, const float* in, float* out, void* stream) {
  diglot::launch<copy_strided_kernel>(diglot::blocks_for(n, kThreads), kThreads,
                                      static_cast<cudaStream_t>(stream), n, stride, in, out);
}

void transpose(Tile tile, std::int64_t rows, std::int64_t columns, const float* in, float* out,
               void* stream) {
  const dim3 grid(static_cast<unsigned>(columns / kTile), static_cast<unsigned>(rows / kTile));
  const dim3 block(kTile, kTileWarps);
  const auto on = static_cast<cudaStream_t>(stream);
  switch (tile) {
    case Tile::kNone:
      return diglot::launch<transpose_kernel>(grid, block, on, rows, columns, in, out);
    case Tile::kPlain:
      return diglot::launch<transpose_by_tile<kTile>>(grid, block, on, rows, columns, in, out);
    case Tile::kPadded:
      return diglot::launch<transpose_by_tile<kTile + 1>>(grid, block, on, rows, columns, in, out);
  }
}
