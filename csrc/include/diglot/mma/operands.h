// The operands of wgmma: types of elements, which thread holds which element in registers, and how
// a tile lies in shared memory so that a matrix descriptor can name it. PTX ISA, "Asynchronous
// warpgroup level matrix instructions". docs/wgmma.md draws it.
#pragma once

#include "diglot/mma/swizzle.h"

namespace diglot {

// Types of the elements of A and B. Sums are float32. TF32 is a float32 whose low 13 bits are
// ignored.
enum class MmaType { kBfloat16, kFloat16, kTf32, kE4m3, kE5m2 };

// The dimension of an operand that is contiguous in shared memory: K, or M of A and N of B.
enum class Major { kK, kMn };

DIGLOT_CONSTEXPR int bytes_of(MmaType type) {
  return type == MmaType::kTf32 ? 4 : type == MmaType::kE4m3 || type == MmaType::kE5m2 ? 1 : 2;
}
// The K of one instruction: 32 bytes.
DIGLOT_CONSTEXPR int depth_of(MmaType type) { return 32 / bytes_of(type); }

// Bytes of a line of a tile in shared memory: a swizzle's span, or a chunk of 16 bytes.
DIGLOT_CONSTEXPR int line_bytes_of(Swizzle swizzle) { return 16 << static_cast<int>(swizzle); }

// --- registers -----------------------------------------------------------------------------------

// The place in the product, of 64 rows, of a thread's accumulator i; threads of a warpgroup count
// from 0 to 127.
DIGLOT_CONSTEXPR int accumulator_row(int thread, int i) {
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
DIGLOT_CONSTEXPR int accumulator_column(int thread, int i) {
  return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

// If A is in registers: the place in A of element i of the four registers that a thread holds.
template <MmaType kType>
DIGLOT_CONSTEXPR int operand_row(int thread, int i) {
  constexpr int kElements = 4 / bytes_of(kType);  // of a register
  return thread / 32 * 16 + thread % 32 / 4 + i / kElements % 2 * 8;
}
template <MmaType kType>
DIGLOT_CONSTEXPR int operand_depth(int thread, int i) {
  constexpr int kElements = 4 / bytes_of(kType);
  return i / kElements / 2 * (4 * kElements) + thread % 4 * kElements + i % kElements;
}

// --- shared memory -------------------------------------------------------------------------------

// The 64 bits that tell wgmma where an operand lies. Addresses and offsets are multiples of 16
// below 2^18. `base_offset` is 0 if the swizzle's pattern begins at a multiple of 8 lines.
// Otherwise it is bits 7 to 9 of the address where the pattern begins.
DIGLOT_CONSTEXPR uint64_t matrix_descriptor(uint32_t address, uint32_t leading_bytes,
                                            uint32_t stride_bytes, Swizzle swizzle,
                                            uint32_t base_offset = 0) {
  const uint64_t mode = (4 - static_cast<uint64_t>(swizzle)) % 4;  // 1: 128 bytes, to 3: 32
  return static_cast<uint64_t>(address >> 4 & 0x3fff) |
         static_cast<uint64_t>(leading_bytes >> 4 & 0x3fff) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4 & 0x3fff) << 32 |
         static_cast<uint64_t>(base_offset & 7) << 49 | mode << 62;
}

// A tile of A or B in shared memory, of `kMn` rows of A or columns of B, and any part of K. It is
// made of panels, one after the other. A panel has a line for each index of the dimension that is
// not contiguous; a line has as many bytes as the swizzle's name says. So a bulk tensor load with
// this swizzle writes a panel. The tile begins at a multiple of 8 lines (1024 bytes for k128).
template <MmaType kType, Major kMajor, Swizzle kSwizzle, int kMn, int kK>
struct SmemTile {
  static constexpr int kElementBytes = bytes_of(kType);
  static constexpr int kLineBytes = line_bytes_of(kSwizzle);
  static constexpr int kLineElements = kLineBytes / kElementBytes;
  static constexpr int kLines = kMajor == Major::kK ? kMn : kK;
  static constexpr int kPanelBytes = kLines * kLineBytes;
  static constexpr int kPanels =
      ((kMajor == Major::kK ? kK : kMn) + kLineElements - 1) / kLineElements;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static constexpr int kAlignment = 8 * kLineBytes;

  static_assert(kMajor == Major::kK || kElementBytes == 2, "only 16-bit operands may be MN-major");
  static_assert(kMn % 8 == 0 && kK % depth_of(kType) == 0, "a tile is made of whole instructions");

  // Where an element lies, in bytes from the tile's beginning.
  static DIGLOT_CONSTEXPR uint32_t offset(int mn, int k) {
    return swizzled(linear_offset(mn, k), kSwizzle);
  }

  // The descriptor of the part that begins at `mn` and `k`. `mn` is a multiple of 8, and of
  // kLineElements if M or N is contiguous. `k` is a multiple of an instruction's K.
  static DIGLOT_CONSTEXPR uint64_t descriptor(uint32_t tile_address, int mn, int k) {
    constexpr uint32_t kGroup = 8 * kLineBytes;  // 8 lines
    constexpr bool kIsSwizzled = kSwizzle != Swizzle::kNone;
    constexpr uint32_t kLeading = kMajor == Major::kMn && !kIsSwizzled ? kGroup : kPanelBytes;
    constexpr uint32_t kStride = kMajor == Major::kMn && !kIsSwizzled ? kPanelBytes : kGroup;
    return matrix_descriptor(tile_address + linear_offset(mn, k), kLeading, kStride, kSwizzle);
  }
  // The descriptor of the part that begins `mn` and `k` later, in a tile some chunks of 16 bytes
  // later. It takes additions alone. So a loop over tiles computes one descriptor before it begins.
  static DIGLOT_CONSTEXPR uint64_t moved(uint64_t descriptor, uint32_t chunks, int mn, int k) {
    const auto low = static_cast<uint32_t>(descriptor) + chunks + linear_offset(mn, k) / 16;
    return descriptor >> 32 << 32 | low;
  }

 private:
  static DIGLOT_CONSTEXPR uint32_t linear_offset(int mn, int k) {
    const int line = kMajor == Major::kK ? mn : k;
    const int element = kMajor == Major::kK ? k : mn;
    return element / kLineElements * kPanelBytes + line * kLineBytes +
           element % kLineElements * kElementBytes;
  }
};

}  // namespace diglot
