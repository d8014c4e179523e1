// Step 1: one thread computes one element of C.
//
// It reads a row of A and a column of B from global memory. Neighbouring threads have neighbouring
// columns, so that a warp's loads of B are neighbours, and those of A are one address.
//
// Prediction: 32 multiply-adds of a warp need two loads, and an SM serves one load a cycle. So it
// makes 16 multiply-adds a cycle, where its CUDA cores could make 128, and its tensor cores 2048.
#include "steps.h"

namespace step1 {

using namespace ladder;

constexpr int kRows = 8, kColumns = 32;

__global__ void multiply_elements(const Product product) {
  const int row = static_cast<int>(blockIdx.y * kRows + threadIdx.y);
  const int column = static_cast<int>(blockIdx.x * kColumns + threadIdx.x);
  if (row >= product.m || column >= product.n) return;
  const bfloat16* const a = product.a + int64_t{row} * product.k;
  const bfloat16* b = product.b + column;
  float sum = 0;
  for (int k = 0; k < product.k; ++k, b += product.n) {
    sum = diglot::fma(convert<float>(a[k]), convert<float>(*b), sum);
  }
  product.c[int64_t{row} * product.n + column] = convert<bfloat16>(sum);
}

void multiply(const Product& product, cudaStream_t stream) {
  const auto columns = static_cast<unsigned>(tiles_of(product.n, kColumns));
  const auto rows = static_cast<unsigned>(tiles_of(product.m, kRows));
  launch<multiply_elements>(dim3(columns, rows), dim3(kColumns, kRows), stream, product);
}

}  // namespace step1
