// The interpreter's arithmetic of wgmma, for tests/test_products.py, which calls it by ctypes.
#include "interpreter/products.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "diglot/mma/operands.h"

namespace {

using namespace diglot;
using interpreter::MatrixDescriptor;
using interpreter::Product;

struct Tile {
  MmaType type;
  Major major;
  Swizzle swizzle;
  int mn, bytes;
  std::uint32_t (*offset)(int mn, int k);
  std::uint64_t (*descriptor)(std::uint32_t address, int mn, int k);
};

template <MmaType kType, Major kMajor, Swizzle kSwizzle, int kMn>
void add_tile(std::vector<Tile>& tiles) {
  using Here = SmemTile<kType, kMajor, kSwizzle, kMn, 4 * depth_of(kType)>;
  tiles.push_back({kType, kMajor, kSwizzle, kMn, Here::kBytes, &Here::offset, &Here::descriptor});
}

template <MmaType kType, Major kMajor, int kMn>
void add_swizzles(std::vector<Tile>& tiles) {
  add_tile<kType, kMajor, Swizzle::kNone, kMn>(tiles);
  add_tile<kType, kMajor, Swizzle::k32, kMn>(tiles);
  add_tile<kType, kMajor, Swizzle::k64, kMn>(tiles);
  add_tile<kType, kMajor, Swizzle::k128, kMn>(tiles);
}

template <MmaType kType, Major kMajor>
void add_extents(std::vector<Tile>& tiles) {
  add_swizzles<kType, kMajor, 8>(tiles);
  add_swizzles<kType, kMajor, 16>(tiles);
  add_swizzles<kType, kMajor, 64>(tiles);
  add_swizzles<kType, kMajor, 96>(tiles);
  add_swizzles<kType, kMajor, 128>(tiles);
  add_swizzles<kType, kMajor, 256>(tiles);
}

const std::vector<Tile>& tiles() {
  static const std::vector<Tile> all = [] {
    std::vector<Tile> made;
    add_extents<MmaType::kBfloat16, Major::kK>(made);
    add_extents<MmaType::kFloat16, Major::kK>(made);
    add_extents<MmaType::kTf32, Major::kK>(made);
    add_extents<MmaType::kE4m3, Major::kK>(made);
    add_extents<MmaType::kE5m2, Major::kK>(made);
    add_extents<MmaType::kBfloat16, Major::kMn>(made);
    add_extents<MmaType::kFloat16, Major::kMn>(made);
    return made;
  }();
  return all;
}

const Tile* find_tile(int type, int major, int swizzle, int mn) {
  for (const Tile& tile : tiles()) {
    if (static_cast<int>(tile.type) == type && static_cast<int>(tile.major) == major &&
        static_cast<int>(tile.swizzle) == swizzle && tile.mn == mn) {
      return &tile;
    }
  }
  return nullptr;
}

std::vector<char> chunks_of(const char* window, std::uint64_t bits, Major major, int extent) {
  MatrixDescriptor descriptor;
  interpreter::decode(bits, descriptor);
  std::vector<char> chunks;
  for (const std::uint32_t address : interpreter::chunk_addresses(descriptor, major, extent)) {
    chunks.insert(chunks.end(), window + address, window + address + interpreter::kChunkBytes);
  }
  return chunks;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// The tile's bytes; `offsets` gets those of its elements, by index of M or N, then of K.
EXPORT int tile_offsets(int type, int major, int swizzle, int mn, std::uint32_t* offsets) {
  const Tile* const tile = find_tile(type, major, swizzle, mn);
  const int k = 4 * depth_of(tile->type);
  for (int i = 0; i < mn * k; ++i) offsets[i] = tile->offset(i / k, i % k);
  return tile->bytes;
}

EXPORT std::uint64_t tile_descriptor(int type, int major, int swizzle, int extent,
                                     std::uint32_t address, int mn, int k) {
  return find_tile(type, major, swizzle, extent)->descriptor(address, mn, k);
}

EXPORT const char* descriptor_fault(std::uint64_t bits) {
  static std::string answer;
  MatrixDescriptor descriptor;
  answer = interpreter::decode(bits, descriptor);
  return answer.c_str();
}

EXPORT std::uint32_t element_address(std::uint64_t bits, int major, int bytes, int mn, int k) {
  MatrixDescriptor descriptor;
  interpreter::decode(bits, descriptor);
  return interpreter::element_address(descriptor, static_cast<Major>(major), bytes, mn, k);
}

EXPORT void decode_numbers(int type, const void* bits, int count, float* numbers) {
  interpreter::decode_numbers(static_cast<MmaType>(type), bits, count, numbers);
}

// Where thread's element i is: of the accumulators, or of A in registers.
EXPORT void place_in_fragment(int type, int thread, int i, int* row, int* column) {
  const auto place = [&](auto constant) {
    constexpr MmaType kType = decltype(constant)::value;
    *row = operand_row<kType>(thread, i), *column = operand_depth<kType>(thread, i);
  };
  switch (type) {
    case 0: return place(std::integral_constant<MmaType, MmaType::kBfloat16>{});
    case 2: return place(std::integral_constant<MmaType, MmaType::kTf32>{});
    case 3: return place(std::integral_constant<MmaType, MmaType::kE4m3>{});
    default: *row = accumulator_row(thread, i), *column = accumulator_column(thread, i);
  }
}

// d, in fragments of 128 threads, of one instruction; A in registers if `registers` are given.
EXPORT void multiply(const int* form, int n, const std::uint32_t* registers, std::uint64_t a,
                     std::uint64_t b, const char* window, int accumulate, int truncates,
                     float* fragments) {
  const Product product{static_cast<MmaType>(form[0]),
                        static_cast<MmaType>(form[1]),
                        static_cast<Major>(form[2]),
                        static_cast<Major>(form[3]),
                        form[4] != 0,
                        form[5] != 0,
                        registers != nullptr};
  std::vector<float> numbers_a(64 * product.depth()), numbers_b(n * product.depth()), d(64 * n);
  if (product.has_registers_a) {
    interpreter::unpack_a(product, registers, numbers_a.data());
  } else {
    interpreter::unpack_a(product, chunks_of(window, a, product.major_a, 64).data(),
                          numbers_a.data());
  }
  interpreter::unpack_b(product, n, chunks_of(window, b, product.major_b, n).data(),
                        numbers_b.data());
  for (int thread = 0; thread < 128; ++thread) {
    interpreter::write_fragment(fragments + thread * n / 2, n, thread, d.data());
  }
  interpreter::multiply(product, n, numbers_a.data(), numbers_b.data(), accumulate != 0,
                        truncates != 0, d.data());
  for (int thread = 0; thread < 128; ++thread) {
    interpreter::read_fragment(d.data(), n, thread, fragments + thread * n / 2);
  }
}
