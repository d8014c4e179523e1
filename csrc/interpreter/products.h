// The arithmetic of wgmma: matrix descriptors, fragments in registers, and products of tiles. PTX
// ISA, "Asynchronous warpgroup level matrix instructions". Nothing here knows of blocks or threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diglot/mma/operands.h"

namespace diglot::interpreter {

constexpr int kProductRows = 64;
constexpr int kWarpgroup = 128;
constexpr int kChunkBytes = 16;
constexpr int kLineChunks = 2;  // of an instruction's K: 32 bytes

// An instruction's types and options: all but its n.
struct Product {
  MmaType type_a, type_b;
  Major major_a, major_b;
  bool negates_a, negates_b;
  bool has_registers_a;

  int depth() const { return depth_of(type_a); }
};

struct MatrixDescriptor {
  std::uint32_t address, leading, stride;
  std::uint32_t base_offset;  // bits 7.. of the address where the swizzle's pattern begins
  Swizzle swizzle;
};

// Reads a descriptor's 64 bits. Returns the fault, or "".
std::string decode(std::uint64_t bits, MatrixDescriptor& descriptor);

// Where an element lies, by its index of M or N and of K.
std::uint32_t element_address(const MatrixDescriptor& descriptor, Major major, int element_bytes,
                              int mn, int k);

// Where the chunks of 16 bytes of an operand of `extent` rows or columns lie. If K is contiguous,
// each two in succession have the K of one index of M or N. Otherwise, each extent / 8 in
// succession have one index of K.
std::vector<std::uint32_t> chunk_addresses(const MatrixDescriptor& descriptor, Major major,
                                           int extent);

// Numbers of an operand's chunks, in that order.
void decode_numbers(MmaType type, const void* bits, int count, float* numbers);

// A as rows of depth() numbers: from its chunks, and from the four registers of each thread.
void unpack_a(const Product& product, const char* chunks, float* a);
void unpack_a(const Product& product, const std::uint32_t* registers, float* a);
// B as depth() rows of n numbers, from its chunks.
void unpack_b(const Product& product, int n, const char* chunks, float* b);

// d = a * b + d, or a * b, of rows of n sums. Products are exact, and sums are rounded to float32.
// With `truncates`, sums keep 14 bits, as those of FP8 on Hopper's tensor cores: each instruction's
// terms are cut, not rounded, to 13 bits below the largest one's first. DeepSeek-V3 Technical
// Report (2024), 3.5.2, "Higher FP8 GEMM Accumulation Precision in Tensor Cores".
void multiply(const Product& product, int n, const float* a, const float* b, bool accumulate,
              bool truncates, float* d);

// A thread's accumulators, out of rows of n sums and back.
void read_fragment(const float* d, int n, int thread, float* fragment);
void write_fragment(const float* fragment, int n, int thread, float* d);

}  // namespace diglot::interpreter
