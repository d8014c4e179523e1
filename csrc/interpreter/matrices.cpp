#include "interpreter/matrices.h"

#include <cmath>
#include <cstring>

namespace diglot::interpreter {

namespace {

constexpr int kRows = 8;  // of a matrix, of 8 elements of 2 bytes

// Where the rows of the matrices begin, which the first lanes say: 8 of them for a matrix.
Lanes exchange_rows(const void* row, int count, const char* what, Place place) {
  const Lanes lanes =
      warp_exchange(0xffffffffu, reinterpret_cast<std::uintptr_t>(row), what, place);
  if (lanes.mask != 0xffffffffu) fail("a warp's matrices are moved by fewer than 32 lanes", place);
  for (int lane = 0; lane < count * kRows; ++lane) {
    if (lanes.values[lane] % 16 != 0) {
      fail("a row of a matrix whose address is no multiple of 16 bytes", place);
    }
  }
  return lanes;
}

// Moves a thread's two elements of each matrix, one way or the other.
template <typename Move>
void move_elements(const Lanes& lanes, int count, bool is_transposed, const Move& move) {
  for (int matrix = 0; matrix < count; ++matrix) {
    for (int element = 0; element < 2; ++element) {
      const int first = lanes.lane / 4, second = lanes.lane % 4 * 2 + element;
      const int row = is_transposed ? second : first, column = is_transposed ? first : second;
      char* const begin = reinterpret_cast<char*>(lanes.values[matrix * kRows + row]);
      move(matrix, element, begin + 2 * column);
    }
  }
}

}  // namespace

void load_matrices(std::uint32_t* registers, int count, bool is_transposed, const void* row,
                   Place place) {
  const Lanes lanes = exchange_rows(row, count, "ldmatrix", place);
  move_elements(lanes, count, is_transposed, [&](int matrix, int element, const char* address) {
    touch(address, 2, Access::kRead, place);
    std::memcpy(reinterpret_cast<char*>(registers + matrix) + 2 * element, address, 2);
  });
}

void store_matrices(const std::uint32_t* registers, int count, bool is_transposed, void* row,
                    Place place) {
  const Lanes lanes = exchange_rows(row, count, "stmatrix", place);
  move_elements(lanes, count, is_transposed, [&](int matrix, int element, char* address) {
    touch(address, 2, Access::kWrite, place);
    std::memcpy(address, reinterpret_cast<const char*>(registers + matrix) + 2 * element, 2);
  });
}

void dmma(double* d, const double* a, const double* b, Place place) {
  constexpr unsigned kAll = 0xffffffffu;
  const auto exchange = [&](const double* mine) {
    return warp_exchange(kAll, reinterpret_cast<std::uintptr_t>(mine), "mma", place);
  };
  const Lanes of_a = exchange(a), of_b = exchange(b);
  if (of_a.mask != kAll) fail("a warp's product is made by fewer than 32 lanes", place);
  const auto held = [](const Lanes& lanes, int lane, int i) {
    return reinterpret_cast<const double*>(lanes.values[lane])[i];
  };
  for (int i = 0; i < 4; ++i) {
    const int row = of_a.lane / 4, column = of_a.lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      d[i] = std::fma(held(of_a, row * 4 + k % 4, k / 4 * 2 + i / 2),
                      held(of_b, column * 4 + k % 4, k / 4), d[i]);
    }
  }
  exchange(nullptr);  // a lane may change its elements when all have read them
}

}  // namespace diglot::interpreter
