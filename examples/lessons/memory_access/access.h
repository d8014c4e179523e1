// What the binding calls of the kernels. All arrays are float32; `stream` is a cudaStream_t.
#pragma once

#include <cstdint>

// out[i] = in[i % rows * stride + i / rows] for i < n, with rows = n / stride, which divides n:
// every element is read once, and neighbouring threads read elements that are `stride` apart.
void copy_strided(std::int64_t n, std::int64_t stride, const float* in, float* out, void* stream);

enum class Tile {
  kNone,    // straight from memory to memory
  kPlain,   // through shared memory, rows of 32 elements
  kPadded,  // through shared memory, rows of 33
};

// out[column][row] = in[row][column]; rows and columns are multiples of 32.
void transpose(Tile tile, std::int64_t rows, std::int64_t columns, const float* in, float* out,
               void* stream);
