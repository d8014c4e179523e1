// Products of groups of 16-bit matrices on Hopper's tensor cores. Twin of
// triton_ops/lib/products/grouped_descriptors.py. tensor_cores.cuh has the ring, the loads and the
// products; here blocks walk the tiles of all groups.
//
// One tensor map serves all groups of rows: a tile may load rows of the next group, but it does not
// store them. Groups of K end anywhere in a stage, and may begin behind its first elements. The
// consumers then overwrite what does not belong to the group by zeros, in shared memory, so that
// infinite elements there reach no sum either.
#pragma once

#include "diglot/products/groups.cuh"
#include "diglot/products/tensor_cores.cuh"

namespace diglot {

struct GroupedWgmma {
  Major major_a, major_b;
  GroupSchedule schedule;
  bool divides_k;  // else rows
  int k;           // where groups divide rows
  int b_step;      // 0 where all groups share one matrix of B, else 1
  // Whether TMA can store whole tiles of C. Others, and all otherwise, threads store.
  bool is_stored_by_tma;
  int64_t c_step;  // from a group's matrix of C to the next

  // A tile of A B.
  struct Place {
    int row, column;  // where it begins
    int begin, end;   // of the group's rows
    int depth, k;     // the range of K: where it begins, and its size
    int before;       // elements of it that are not the group's
    int matrix_b, matrix_c;
  };
  DIGLOT_DEVICE Place place(const Group& group, int64_t index, int m, int tile_rows,
                            int tile_columns) const {
    const Tile tile = schedule.tile_of(group, index);
    const int row = tile.row * tile_rows, column = tile.column * tile_columns;
    const int begin = static_cast<int>(group.begin), end = static_cast<int>(group.end);
    const int first = static_cast<int>(schedule.first_of(group));
    if (divides_k) {
      const int size = begin == end ? 0 : end - first;
      return {row, column, 0, m, first, size, begin - first, 0, group.number};
    }
    // The rows past the last group are zeros.
    const bool has_matrix = group.number < schedule.groups;
    return {first + row, column, begin, end, 0, has_matrix ? k : 0, 0, group.number * b_step, 0};
  }
};

// Overwrites the elements of K in a stage before `begin`, and from `end` on, by zeros. Each
// consumer does its rows of A, and half of the columns of B.
template <typename T, typename Shape, typename TileA, typename TileB>
DIGLOT_DEVICE void zero_outside(char* a, char* b, int consumer, int begin, int end) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  const int outside = Shape::kDepth - (end - begin);
  const auto zero = [&](char* tile, auto offset_of, int first, int count) {
    for (int i = thread; i < count * outside; i += kWarpgroupThreads) {
      const int depth = i / count < begin ? i / count : i / count + end - begin;
      *reinterpret_cast<T*>(tile + offset_of(first + i % count, depth)) = convert<T>(0.0f);
    }
  };
  zero(a, TileA::offset, consumer * Shape::kConsumerRows, Shape::kConsumerRows);
  zero(b, TileB::offset, consumer * (Shape::kColumns / 2), Shape::kColumns / 2);
  fence_async_proxy();  // each thread's writes, before wgmma reads them
  named_barrier_sync(1 + Shape::kConsumers, Shape::kConsumers * kWarpgroupThreads);
}

// Fills the ring for all tiles of the block.
template <typename Shape>
DIGLOT_DEVICE void produce_groups(typename Shape::Shared& shared, Mbarrier* full, Mbarrier* empty,
                                  const TensorMap& a, const TensorMap& b, const int32_t* offsets,
                                  const GroupedWgmma& product) {
  Ring<Shape::kStages> ring;
  Group group;
  for (int64_t index = blockIdx.x; product.schedule.find(offsets, index, group);
       index += gridDim.x) {
    const auto place = product.place(group, index, 0, Shape::kRows, Shape::kColumns);
    for (int depth = 0; depth < place.k; depth += Shape::kDepth) {
      produce_stage<Shape>(
          shared, ring, full, empty, a, b, product.major_a, product.major_b,
          {place.row, place.column, place.depth + depth, {0, 0}, {place.matrix_b, 0}});
    }
  }
}

// Multiplies and stores all tiles of the block.
template <typename T, typename Shape>
DIGLOT_DEVICE void consume_groups(typename Shape::Shared& shared, Mbarrier* full, Mbarrier* empty,
                                  const TensorMap& map_c, const int32_t* offsets,
                                  const Epilogue<T>& epilogue, const GroupedWgmma& product) {
  const int consumer = consumer_number();
  const int first_row = consumer * Shape::kConsumerRows;
  const int m = static_cast<int>(epilogue.m), n = static_cast<int>(epilogue.n);
  Ring<Shape::kStages> ring;
  TmaParts<Shape> stored{shared.c[consumer], 1 + consumer};
  Group group;
  for (int64_t index = blockIdx.x; product.schedule.find(offsets, index, group);
       index += gridDim.x) {
    const auto place = product.place(group, index, m, Shape::kRows, Shape::kColumns);
    const int steps = (place.k + Shape::kDepth - 1) / Shape::kDepth;
    // TMA fills what lies beyond A and B with zeros, but not what belongs to the next group.
    const int left = product.divides_k ? place.k - (steps - 1) * Shape::kDepth : Shape::kDepth;
    float sums[Shape::kHalves][Shape::kSums];
    multiply_stages<T, Shape>(sums, ring, shared, full, empty, first_row, product.major_a,
                              product.major_b, steps,
                              [&](auto tile_a, auto tile_b, int stage, int step) {
                                const int before = step == 0 ? place.before : 0;
                                const int last = step + 1 == steps ? left : Shape::kDepth;
                                if (before == 0 && last == Shape::kDepth) return;
                                zero_outside<T, Shape, decltype(tile_a), decltype(tile_b)>(
                                    shared.a[stage], shared.b[stage], consumer, before, last);
                              });
    const int row = place.row + first_row;
    const bool is_whole =
        row >= place.begin && (row + Shape::kConsumerRows <= place.end || place.end == m);
    if (product.is_stored_by_tma && is_whole) {
      store_by_tma<T, Shape>(sums[0], stored, map_c, row, place.column,
                             BatchPlace{place.matrix_c, 0});
    } else {
      epilogue.moved(place.matrix_c * product.c_step, 0).store(false, [&](auto visit) {
        for_each_sum<false>(sums[0], row, place.column, place.end, n,
                            [&](float& sum, int line, int at) {
                              if (line >= place.begin) visit(sum, line, at);
                            });
      });
    }
  }
  // A block's shared memory ends with the block.
  if (threadIdx.x % kWarpgroupThreads == 0) wait_bulk_groups_read<0>();
}

template <typename T, typename Shape>
DIGLOT_DEVICE void multiply_groups_by_wgmma(const TensorMap& a, const TensorMap& b,
                                            const TensorMap& map_c, const int32_t* offsets,
                                            const Epilogue<T>& epilogue,
                                            const GroupedWgmma& product) {
  share_out<Shape>(
      [&](auto& shared, Mbarrier* full, Mbarrier* empty) {
        produce_groups<Shape>(shared, full, empty, a, b, offsets, product);
      },
      [&](auto& shared, Mbarrier* full, Mbarrier* empty) {
        consume_groups<T, Shape>(shared, full, empty, map_c, offsets, epilogue, product);
      });
}

}  // namespace diglot
