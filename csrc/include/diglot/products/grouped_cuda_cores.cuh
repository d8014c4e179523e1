// Products of groups of matrices of any type, size and strides, by fused multiply-adds. Twin of
// triton_ops/lib/products/grouped_pointers.py. cuda_cores.cuh multiplies a tile.
#pragma once

#include "diglot/products/cuda_cores.cuh"
#include "diglot/products/groups.cuh"

namespace diglot {

// A B for each group, of rows or of K.
struct GroupedFma {
  int64_t m, n, k;  // of all groups
  MatrixStrides a, b;
  int64_t b_step, c_step;  // from a group's matrix to the next
  GroupSchedule schedule;
  bool divides_k;
};

// A B of one group.
struct GroupFma {
  int64_t m, n, k;
  int steps;
  MatrixStrides a, b;
};

// Computes the block's tile, if the groups have one for it.
template <typename T, typename Shape>
DIGLOT_DEVICE void multiply_groups_by_fma(const T* a, const T* b, const int32_t* offsets,
                                          const Epilogue<T>& epilogue, const GroupedFma& product) {
  const int64_t index = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  Group<int64_t> group;
  if (!product.schedule.find(offsets, index, group)) return;
  const Tile tile = product.schedule.tile_of(group, index);
  GroupFma part{product.m, product.n, product.k, 0, product.a, product.b};
  int64_t of_c = tile.batch * product.c_step;
  if (product.divides_k) {
    a += group.begin * product.a.column;
    b += group.begin * product.b.row;
    part.k = group.size();
  } else {
    // The rows past the last group are zeros.
    const bool has_matrix = group.number < product.schedule.groups;
    a += group.begin * product.a.row;
    if (has_matrix) b += tile.batch * product.b_step;
    part.m = group.size(), part.k = has_matrix ? product.k : 0;
    of_c = group.begin * epilogue.strides.row;
  }
  part.steps = static_cast<int>((part.k + Shape::kDepth - 1) / Shape::kDepth);
  multiply_tile<T, Shape>(a, b, part, epilogue.moved(of_c, 0), tile);
}

}  // namespace diglot
