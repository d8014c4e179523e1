#include "interpreter/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "interpreter/include/cuda_bf16.h"
#include "interpreter/include/cuda_fp16.h"

namespace diglot::interpreter {

namespace {

constexpr int kMaxDepth = 32;

std::string hexadecimal(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%x", value);
  return text;
}

// The address of a chunk of one of the operand's lines, which follow the contiguous dimension.
std::uint32_t chunk_address(const MatrixDescriptor& descriptor, Major major, int line, int chunk) {
  const auto line_bytes = static_cast<std::uint32_t>(line_bytes_of(descriptor.swizzle));
  const std::uint32_t first = line % 8 * line_bytes, group = line / 8;
  std::uint32_t address = descriptor.address + first;
  if (major == Major::kK) {
    address += group * descriptor.stride;
    address += chunk * (descriptor.swizzle == Swizzle::kNone ? descriptor.leading : kChunkBytes);
  } else if (descriptor.swizzle == Swizzle::kNone) {
    address += group * descriptor.leading + chunk * descriptor.stride;
  } else {
    const int line_chunks = static_cast<int>(line_bytes) / kChunkBytes;
    address += group * descriptor.stride;
    address += chunk / line_chunks * descriptor.leading + chunk % line_chunks * kChunkBytes;
  }
  const std::uint32_t pattern = descriptor.base_offset << 7;
  return swizzled(address - pattern, descriptor.swizzle) + pattern;
}

// Numbers of a byte, by its bits: of e4m3, which has no infinity, or e5m2.
std::array<float, 256> table_of_bytes(int mantissa_bits, bool has_infinity) {
  std::array<float, 256> table{};
  const int exponent_bits = 7 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  for (int bits = 0; bits < 128; ++bits) {
    const int exponent = bits >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    const int implicit = exponent == 0 ? 0 : 1 << mantissa_bits;
    float value = std::ldexp(static_cast<float>(mantissa + implicit),
                             std::max(exponent, 1) - bias - mantissa_bits);
    if (has_infinity && exponent == (1 << exponent_bits) - 1) {
      value = mantissa == 0 ? std::numeric_limits<float>::infinity()
                            : std::numeric_limits<float>::quiet_NaN();
    } else if (!has_infinity && bits == 127) {
      value = std::numeric_limits<float>::quiet_NaN();
    }
    table[bits] = value;
    table[bits + 128] = -value;
  }
  return table;
}

template <typename Bits, typename Number>
void decode_each(const void* bits, int count, float* numbers, Number number) {
  for (int i = 0; i < count; ++i) {
    Bits value;
    std::memcpy(&value, static_cast<const char*>(bits) + i * sizeof(Bits), sizeof(Bits));
    numbers[i] = number(value);
  }
}

void negate(float* numbers, int count) {
  for (int i = 0; i < count; ++i) numbers[i] = -numbers[i];
}

// A sum of terms, each cut to 13 bits below the first bit of the largest term.
float truncated_sum(const float* terms, int count) {
  float largest = 0, sum = 0;
  for (int i = 0; i < count; ++i) {
    sum += terms[i];  // infinity or NaN, if any is
    largest = std::max(largest, std::fabs(terms[i]));
  }
  if (!std::isfinite(sum) || largest == 0) return sum;
  const int unit = std::ilogb(largest) - 13;
  double units = 0;
  for (int i = 0; i < count; ++i) {
    units += std::trunc(std::ldexp(static_cast<double>(terms[i]), -unit));
  }
  return static_cast<float>(std::ldexp(units, unit));
}

template <int kDepth>
__attribute__((optimize("O3"))) void multiply_rows(int n, const float* a, const float* b,
                                                   bool accumulate, float* d) {
  constexpr int kColumns = 8;
  for (int row = 0; row < kProductRows; ++row) {
    for (int column = 0; column < n; column += kColumns) {
      float sums[kColumns] = {};
      float* const out = d + row * n + column;
      if (accumulate) std::memcpy(sums, out, sizeof(sums));
      for (int k = 0; k < kDepth; ++k) {
        const float factor = a[row * kDepth + k];
        const float* const line = b + k * n + column;
        for (int i = 0; i < kColumns; ++i) sums[i] += factor * line[i];
      }
      std::memcpy(out, sums, sizeof(sums));
    }
  }
}

void multiply_truncating(int depth, int n, const float* a, const float* b, bool accumulate,
                         float* d) {
  float terms[kMaxDepth + 1];
  for (int row = 0; row < kProductRows; ++row) {
    for (int column = 0; column < n; ++column) {
      for (int k = 0; k < depth; ++k) terms[k] = a[row * depth + k] * b[k * n + column];
      float& sum = d[row * n + column];
      terms[depth] = accumulate ? sum : 0;
      sum = truncated_sum(terms, depth + 1);
    }
  }
}

}  // namespace

std::string decode(std::uint64_t bits, MatrixDescriptor& descriptor) {
  const auto field = [bits](int begin, int count) {
    return static_cast<std::uint32_t>(bits >> begin & ((1u << count) - 1));
  };
  constexpr Swizzle kSwizzles[] = {Swizzle::kNone, Swizzle::k128, Swizzle::k64, Swizzle::k32};
  descriptor = {field(0, 14) << 4, field(16, 14) << 4, field(32, 14) << 4, field(49, 3),
                kSwizzles[field(62, 2)]};
  if (field(14, 2) != 0 || field(30, 2) != 0 || field(46, 3) != 0 || field(52, 10) != 0) {
    return "a matrix descriptor with reserved bits that are not 0: was an address or an offset "
           "shifted by 4 twice, or not at all?";
  }
  const std::uint32_t line = span_of(descriptor.swizzle);
  const std::uint32_t begin = descriptor.address - (descriptor.base_offset << 7);
  if (line != 0 && begin % (8 * line) >= line) {
    return "a matrix descriptor whose address, " + hexadecimal(descriptor.address) +
           ", is not in the first line of the swizzle's pattern: with a swizzle of " +
           std::to_string(line) + " bytes a tile must begin at a multiple of " +
           std::to_string(8 * line) + ", or say in its base offset where the pattern begins";
  }
  return "";
}

std::uint32_t element_address(const MatrixDescriptor& descriptor, Major major, int element_bytes,
                              int mn, int k) {
  const int line = major == Major::kK ? mn : k;
  const int byte = (major == Major::kK ? k : mn) * element_bytes;
  return chunk_address(descriptor, major, line, byte / kChunkBytes) + byte % kChunkBytes;
}

std::vector<std::uint32_t> chunk_addresses(const MatrixDescriptor& descriptor, Major major,
                                           int extent) {
  const int lines = major == Major::kK ? extent : depth_of(MmaType::kFloat16);
  const int line_chunks = extent * kLineChunks / lines;
  std::vector<std::uint32_t> addresses;
  addresses.reserve(extent * kLineChunks);
  for (int line = 0; line < lines; ++line) {
    for (int chunk = 0; chunk < line_chunks; ++chunk) {
      addresses.push_back(chunk_address(descriptor, major, line, chunk));
    }
  }
  return addresses;
}

void decode_numbers(MmaType type, const void* bits, int count, float* numbers) {
  static const std::array<float, 256> e4m3 = table_of_bytes(3, false);
  static const std::array<float, 256> e5m2 = table_of_bytes(2, true);
  switch (type) {
    case MmaType::kBfloat16:
      return decode_each<std::uint16_t>(
          bits, count, numbers, [](std::uint16_t value) { return __bfloat162float({value}); });
    case MmaType::kFloat16:
      return decode_each<std::uint16_t>(bits, count, numbers,
                                        [](std::uint16_t value) { return __half2float({value}); });
    case MmaType::kTf32:
      return decode_each<std::uint32_t>(bits, count, numbers, [](std::uint32_t value) {
        const std::uint32_t kept = value & ~0x1fffu;
        float number;
        std::memcpy(&number, &kept, sizeof(number));
        return number;
      });
    case MmaType::kE4m3:
    case MmaType::kE5m2: {
      const auto& table = type == MmaType::kE4m3 ? e4m3 : e5m2;
      return decode_each<std::uint8_t>(bits, count, numbers,
                                       [&table](std::uint8_t value) { return table[value]; });
    }
  }
}

// Whether A is negated: a change of B's sign is made on A too.
static bool is_negative(const Product& product) { return product.negates_a != product.negates_b; }

void unpack_a(const Product& product, const char* chunks, float* a) {
  const int depth = product.depth(), count = kProductRows * depth;
  if (product.major_a == Major::kK) {
    decode_numbers(product.type_a, chunks, count, a);
  } else {
    std::vector<float> columns(count);
    decode_numbers(product.type_a, chunks, count, columns.data());
    for (int row = 0; row < kProductRows; ++row) {
      for (int k = 0; k < depth; ++k) a[row * depth + k] = columns[k * kProductRows + row];
    }
  }
  if (is_negative(product)) negate(a, count);
}

template <MmaType kType>
static void place_registers(const std::uint32_t* registers, float* a) {
  constexpr int kDepth = depth_of(kType), kElements = 16 / bytes_of(kType);
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    float numbers[kElements];
    decode_numbers(kType, registers + 4 * thread, kElements, numbers);
    for (int i = 0; i < kElements; ++i) {
      a[operand_row<kType>(thread, i) * kDepth + operand_depth<kType>(thread, i)] = numbers[i];
    }
  }
}

void unpack_a(const Product& product, const std::uint32_t* registers, float* a) {
  switch (product.type_a) {
    case MmaType::kBfloat16: place_registers<MmaType::kBfloat16>(registers, a); break;
    case MmaType::kFloat16: place_registers<MmaType::kFloat16>(registers, a); break;
    case MmaType::kTf32: place_registers<MmaType::kTf32>(registers, a); break;
    case MmaType::kE4m3: place_registers<MmaType::kE4m3>(registers, a); break;
    case MmaType::kE5m2: place_registers<MmaType::kE5m2>(registers, a); break;
  }
  if (is_negative(product)) negate(a, kProductRows * product.depth());
}

void unpack_b(const Product& product, int n, const char* chunks, float* b) {
  const int depth = product.depth();
  if (product.major_b == Major::kMn) return decode_numbers(product.type_b, chunks, n * depth, b);
  std::vector<float> columns(n * depth);
  decode_numbers(product.type_b, chunks, n * depth, columns.data());
  for (int k = 0; k < depth; ++k) {
    for (int column = 0; column < n; ++column) b[k * n + column] = columns[column * depth + k];
  }
}

void multiply(const Product& product, int n, const float* a, const float* b, bool accumulate,
              bool truncates, float* d) {
  if (truncates) return multiply_truncating(product.depth(), n, a, b, accumulate, d);
  switch (product.depth()) {
    case 8: return multiply_rows<8>(n, a, b, accumulate, d);
    case 16: return multiply_rows<16>(n, a, b, accumulate, d);
    default: return multiply_rows<32>(n, a, b, accumulate, d);
  }
}

void read_fragment(const float* d, int n, int thread, float* fragment) {
  for (int i = 0; i < n / 2; i += 2) {
    std::memcpy(fragment + i, d + accumulator_row(thread, i) * n + accumulator_column(thread, i),
                2 * sizeof(float));
  }
}

void write_fragment(const float* fragment, int n, int thread, float* d) {
  for (int i = 0; i < n / 2; i += 2) {
    std::memcpy(d + accumulator_row(thread, i) * n + accumulator_column(thread, i), fragment + i,
                2 * sizeof(float));
  }
}

}  // namespace diglot::interpreter
