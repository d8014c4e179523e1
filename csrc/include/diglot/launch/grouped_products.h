// Host side of a product of groups: its operands, with groups of rows or of K. Twin of
// triton_ops/launch/grouped_products.py.
#pragma once

#include <algorithm>
#include <cstdint>

#include "diglot/launch/plan.h"
#include "diglot/products/epilogue.cuh"
#include "diglot/products/groups.cuh"

namespace diglot {

// A matrix's transpose, or those of a batch of matrices.
inline Operand transposed(Operand operand) {
  std::swap(operand.sizes[operand.rank - 1], operand.sizes[operand.rank - 2]);
  std::swap(operand.strides[operand.rank - 1], operand.strides[operand.rank - 2]);
  return operand;
}

// The operands of C = A B for each group. Groups divide the rows of A and C, and each has a matrix
// of B. Or they divide K, and each has a matrix of C. Groups of columns are rows of transposes.
struct GroupedProduct {
  Operand a, b, c;
  const Operand* offsets;
  bool divides_k;
  int64_t m, n, k;
  int64_t groups;

  GroupedProduct(const Operand& input, const Operand& other, const Operand& offsets,
                 const Operand& out)
      : GroupedProduct(input.rank == 3 ? transposed(other) : input,
                       input.rank == 3 ? transposed(input) : other,
                       input.rank == 3 ? transposed(out) : out, &offsets) {}

  bool is_empty() const { return c.numel == 0; }
  static MatrixStrides strides_of(const Operand& operand) {
    return {operand.strides[operand.rank - 2], operand.strides[operand.rank - 1]};
  }
  // From a group's matrix to the next; 0 where all groups share one.
  static int64_t group_stride(const Operand& operand) {
    return operand.rank == 3 ? operand.strides[0] : 0;
  }
  template <typename T>
  auto epilogue() const {
    return [m = m, n = n, c = c.as<T>(), of_c = strides_of(c)](const Arguments& now) {
      Epilogue<T> result{m, n, 1, 1};
      result.c = c(now), result.strides = of_c;
      return result;
    };
  }
  // Of tiles of this size, whose ranges begin at multiples of `align`.
  GroupSchedule schedule(int tile_rows, int tile_columns, int height, int align = 1) const {
    const auto tiles = [](int64_t size, int tile) {
      return static_cast<int>((size + tile - 1) / tile);
    };
    return {static_cast<int>(groups),
            divides_k ? k : m,
            divides_k ? 0 : tile_rows,
            divides_k ? tiles(m, tile_rows) : 0,
            tiles(n, tile_columns),
            height,
            align};
  }

 private:
  GroupedProduct(const Operand& a, const Operand& b, const Operand& c, const Operand* offsets)
      : a(a),
        b(b),
        c(c),
        offsets(offsets),
        divides_k(b.rank == 2),
        m(a.sizes[0]),
        n(b.sizes[b.rank - 1]),
        k(a.sizes[1]),
        groups(offsets->numel) {}
};

// Plans a grouped product on tensor cores; false if its kernels cannot take it.
using GroupedPlanner = bool (*)(Planner& planner, const GroupedProduct& product);
// Null where the build has no such kernels: their file is compiled for sm_90a alone.
inline GroupedPlanner& grouped_tensor_core_planner() {
  static GroupedPlanner planner = nullptr;
  return planner;
}

}  // namespace diglot
