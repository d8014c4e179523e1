// Products of groups of 16-bit matrices on Hopper's tensor cores. Twin of
// triton_ops/lib/products/grouped_descriptors.py. tensor_cores.cuh has the loads and the roles of
// warpgroups; here blocks walk the tiles of all groups.
//
// Where groups divide rows, operands are exchanged, as those of few rows there. A is the transpose
// of the matrix that has C's columns, and B that of the one with its rows. A tile has 128 columns
// of C. Its rows are as many as its group leaves: a product of wgmma has 16 to 256. TMA loads no
// more of them either, so a short group takes little time. Where all tiles have few rows, the ring
// has more stages. Where groups divide K, tiles have 128 rows, and their columns end with C.
//
// One tensor map serves all groups of rows: a tile may load rows of the next group, but it does not
// store them. Groups of K end anywhere in a stage, and may begin behind its first elements. The
// consumers then overwrite what does not belong to the group by zeros, in shared memory, so that
// infinite elements there reach no sum either.
#pragma once

#include "diglot/products/groups.cuh"
#include "diglot/products/tensor_cores.cuh"

namespace diglot {

// A tile of C has kLength columns and up to 256 rows, if groups divide rows: operands are
// exchanged. If they divide K, it has kLength rows and up to 256 columns.
template <typename T, bool kDividesK_>
struct GroupShape : WgmmaShape<T, 256, !kDividesK_> {
  using Base = WgmmaShape<T, 256, !kDividesK_>;
  static constexpr bool kDividesK = kDividesK_;
  static constexpr int kLength = Base::kRows;
  static constexpr int kFewest = kDividesK ? 64 : 16;  // columns of a product of wgmma
  static constexpr int kStages = 10;                   // at most
  static constexpr int kRingBytes = 4 * (Base::kBytesA + Base::kBytesB);

  struct Shared {
    char ring[kRingBytes];  // a stage's tile of A, and behind it that of B
    char c[Base::kConsumers][Base::kParts][Base::kPartPanels][Base::PanelC::kBytes];
    RingBarriers<kStages, Base::kConsumers> barriers;
  };
  static_assert(sizeof(Shared) <= Base::kSharedBytes - 1024);
};

// The columns of the narrowest product of wgmma with room for `width`.
DIGLOT_HOST_DEVICE int product_width(int width, int fewest) {
  int result = fewest;
  while (result < width) result *= 2;
  return result;
}

struct GroupedWgmma {
  static constexpr int kLineBytes = 128;

  Major major_a, major_b;
  GroupSchedule schedule;
  int m, n;
  int k;       // where groups divide rows
  int a_step;  // 0 where all groups share one matrix of A, else 1
  // Whether TMA can store C. Otherwise threads do.
  bool is_stored_by_tma;
  int64_t c_step;  // from a group's matrix of C to the next
  int width;       // of a tile, at most
  int box;         // rows of B^T that TMA loads at once, and rows of C that it stores
  int stages, stage_bytes;

  // A tile of C.
  struct Place {
    int row, column;  // where it begins
    int width;        // rows, or columns if groups divide K, that lie in C
    int begin, end;   // of the group's rows
    int depth, k;     // the range of K: where it begins, and its size
    int before;       // elements of it that are not the group's
    int matrix_a, matrix_c;
  };
  template <typename Shape>
  DIGLOT_DEVICE Place place(const Group<int>& group, int index) const {
    const Tile tile = schedule.tile_of(group, index);
    const int begin = group.begin, end = group.end, first = schedule.first_of(group);
    const auto width_until = [&](int left) { return left < width ? left : width; };
    if constexpr (Shape::kDividesK) {
      const int row = tile.row * Shape::kLength, column = tile.column * width;
      const int size = begin == end ? 0 : end - first;
      return {row,   column, width_until(n - column), 0, m,
              first, size,   begin - first,           0, group.number};
    }
    const int row = first + tile.row * width;
    // The rows past the last group are zeros.
    const bool has_matrix = group.number < schedule.groups;
    return {row,
            tile.column * Shape::kLength,
            width_until(end - row),
            begin,
            end,
            0,
            has_matrix ? k : 0,
            0,
            group.number * a_step,
            0};
  }
};

// The stages of the ring in turn, and the parity of their current phase.
struct GroupRing {
  int stages;
  int stage = 0;
  uint32_t parity = 0;

  DIGLOT_DEVICE void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Loads a tile of A or B: `side` is where it begins along M or N, and `depth` along K.
template <int kSide, int kDepth, int kLine, typename Batch>
DIGLOT_DEVICE void load_tile(const TensorMap& map, char* tile, Mbarrier& full, Major major,
                             int side, int depth, const Batch& batch) {
  if (major == Major::kK) {
    tma_load(map, tile, full, {depth, side, batch.inner, batch.outer});
  } else {
    DIGLOT_UNROLL
    for (int first = 0; first < kSide; first += kLine) {
      tma_load(map, tile + first * kDepth * 2, full,
               {side + first, depth, batch.inner, batch.outer});
    }
  }
}

// Fills the ring for all tiles of the block.
template <typename Shape>
DIGLOT_DEVICE void produce_groups(typename Shape::Shared& shared, Mbarrier* full, Mbarrier* empty,
                                  const TensorMap& a, const TensorMap& b, const int32_t* offsets,
                                  const GroupedWgmma& product) {
  constexpr int kLineBytes = GroupedWgmma::kLineBytes;
  GroupRing ring{product.stages};
  Group<int> group;
  for (int index = static_cast<int>(blockIdx.x); product.schedule.find(offsets, index, group);
       index += static_cast<int>(gridDim.x)) {
    const auto place = product.template place<Shape>(group, index);
    const int side_a = Shape::kDividesK ? place.row : place.column;
    const int side_b = Shape::kDividesK ? place.column : place.row;
    const int width = product_width(place.width, product.box);
    for (int step = 0; step < place.k; step += Shape::kDepth) {
      const int depth = place.depth + step;
      char* const tile_a = shared.ring + ring.stage * product.stage_bytes;
      char* const tile_b = tile_a + Shape::kBytesA;
      Mbarrier& stage = full[ring.stage];
      // The phase before a new barrier's first counts as ended: the first round waits for nobody.
      empty[ring.stage].wait(ring.parity ^ 1);
      stage.arrive_expect(static_cast<uint32_t>(Shape::kBytesA + width * kLineBytes));
      load_tile<Shape::kRows, Shape::kDepth, Shape::kLine>(
          a, tile_a, stage, product.major_a, side_a, depth, BatchPlace{place.matrix_a, 0});
      for (int first = 0; first < width; first += product.box) {
        const int side = side_b + first;
        const bool is_along_k = product.major_b == Major::kK;
        tma_load(b, tile_b + first * kLineBytes, stage,
                 {is_along_k ? depth : side, is_along_k ? side : depth, 0, 0});
      }
      ring.advance();
    }
  }
}

// Overwrites the elements of K in a stage's tile before `begin`, and from `end` on, by zeros.
// `first` and `count`: columns or rows of C.
template <typename T, typename Tile, Major kMajor, int kDepth>
DIGLOT_DEVICE void zero_outside(char* tile, int first, int count, int begin, int end) {
  constexpr int kElements = kMajor == Major::kMn ? kAccessBytes / sizeof(T) : 1;
  const int accesses = count / kElements, outside = kDepth - (end - begin);
  for (int i = warpgroup_thread(); i < accesses * outside; i += kWarpgroupThreads) {
    const int line = i / accesses, side = first + i % accesses * kElements;
    const int depth = line < begin ? line : line + end - begin;
    *reinterpret_cast<Vector<T, kElements>*>(tile + Tile::offset(side, depth)) = {};
  }
}

// sums = a consumer's part of a tile of C. The products of a stage run while the next one's are
// issued; then the stage before is free.
template <typename T, typename Shape, int kWidth, Major kMajorA, Major kMajorB>
DIGLOT_DEVICE void multiply_group(float (&all_sums)[Shape::kSums], GroupRing& ring, char* memory,
                                  Mbarrier* full, Mbarrier* empty, int consumer,
                                  const GroupedWgmma& product, const GroupedWgmma::Place& place) {
  using TileA = typename Shape::template TileA<kMajorA>;
  using TileB = typename Shape::template TileB<kMajorB>;
  constexpr MmaType kType = kMmaType<T>;
  auto& sums = reinterpret_cast<float (&)[kWidth / 2]>(all_sums);
  const int first = consumer * Shape::kConsumerRows;
  const int steps = (place.k + Shape::kDepth - 1) / Shape::kDepth;
  // TMA fills what lies beyond A and B with zeros, but not what belongs to the next group.
  const int left = place.k - (steps - 1) * Shape::kDepth;
  DIGLOT_UNROLL
  for (float& sum : sums) sum = 0;
  fence_accumulators(sums);
  int previous = 0;
  for (int step = 0; step < steps; ++step) {
    full[ring.stage].wait(ring.parity);
    char* const tile_a = memory + ring.stage * product.stage_bytes;
    char* const tile_b = tile_a + Shape::kBytesA;
    const uint32_t a = shared_address(tile_a), b = shared_address(tile_b);
    if constexpr (Shape::kDividesK) {
      const int begin = step == 0 ? place.before : 0;
      const int end = step + 1 == steps ? left : Shape::kDepth;
      if (begin != 0 || end != Shape::kDepth) {
        constexpr int kShare = kWidth / Shape::kConsumers, kDepth = Shape::kDepth;
        zero_outside<T, TileA, kMajorA, kDepth>(tile_a, first, Shape::kConsumerRows, begin, end);
        zero_outside<T, TileB, kMajorB, kDepth>(tile_b, consumer * kShare, kShare, begin, end);
        fence_async_proxy();  // each thread's writes, before wgmma reads them
        named_barrier_sync(1 + Shape::kConsumers, Shape::kConsumers * kWarpgroupThreads);
      }
    }
    wgmma_fence();
    DIGLOT_UNROLL
    for (int k = 0; k < Shape::kDepth; k += depth_of(kType)) {
      wgmma<kType, kType, kMajorA, kMajorB>(sums, TileA::descriptor(a, first, k),
                                            TileB::descriptor(b, 0, k), true);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) release_stage(empty[previous]);
    previous = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  fence_accumulators(sums);
  if (steps > 0) release_stage(empty[previous]);
}

// Calls function(width, major_a, major_b), with constants.
template <int kFewest, typename Function>
DIGLOT_DEVICE void with_form(int width, Major major_a, Major major_b, const Function& function) {
  const auto with_width = [&](auto constant_a, auto constant_b) {
    const auto call = [&](auto constant) { function(constant, constant_a, constant_b); };
    if constexpr (kFewest == 16) {
      if (width <= 16) return call(std::integral_constant<int, 16>{});
      if (width <= 32) return call(std::integral_constant<int, 32>{});
    }
    if (width <= 64) return call(std::integral_constant<int, 64>{});
    if (width <= 128) return call(std::integral_constant<int, 128>{});
    call(std::integral_constant<int, 256>{});
  };
  constexpr std::integral_constant<Major, Major::kK> kAlongK;
  constexpr std::integral_constant<Major, Major::kMn> kAlongMn;
  if (major_a == Major::kK) {
    major_b == Major::kK ? with_width(kAlongK, kAlongK) : with_width(kAlongK, kAlongMn);
  } else {
    major_b == Major::kK ? with_width(kAlongMn, kAlongK) : with_width(kAlongMn, kAlongMn);
  }
}

// Copies lines of a panel to the group's rows of C, 16 bytes at once where that is possible.
template <typename T, typename Shape>
DIGLOT_DEVICE void copy_lines(const char* panel, const Epilogue<T>& epilogue, bool is_aligned,
                              int row, int column, int first, int last) {
  constexpr int kElements = kAccessBytes / sizeof(T), kAccesses = Shape::kPanel / kElements;
  const int n = static_cast<int>(epilogue.n);
  DIGLOT_NO_UNROLL
  for (int i = warpgroup_thread(); i < Shape::kPanelLines * kAccesses; i += kWarpgroupThreads) {
    const int line = i / kAccesses, at = i % kAccesses * kElements;
    const int to_row = row + line, to_column = column + at;
    if (to_row < first || to_row >= last || to_column >= n) continue;
    const auto values = load_vector<T, kElements>(
        reinterpret_cast<const T*>(panel + Shape::PanelC::offset(line, at)));
    T* const to = epilogue.c + to_row * epilogue.strides.row + to_column * epilogue.strides.column;
    if (is_aligned && to_column + kElements <= n) {
      store_vector(to, values);
    } else {
      DIGLOT_UNROLL
      for (int j = 0; j < kElements; ++j) {
        if (to_column + j < n) to[j * epilogue.strides.column] = values[j];
      }
    }
  }
}

// Stores a consumer's columns of a tile of a group of rows, some rows at a time.
template <typename T, typename Shape>
DIGLOT_DEVICE void store_rows(float (&sums)[Shape::kSums], TmaParts<Shape>& stored,
                              const TensorMap& map_c, const Epilogue<T>& epilogue,
                              const GroupedWgmma& product, const GroupedWgmma::Place& place,
                              int column) {
  const int thread = warpgroup_thread();
  DIGLOT_UNROLL
  for (int first = 0; first < Shape::kColumns; first += Shape::kPanelLines) {
    if (first >= place.width) return;
    const int left = place.width - first;
    const int lines = left < Shape::kPanelLines ? left : Shape::kPanelLines;
    char* const panel = stored.panels[stored.next][0];
    DIGLOT_UNROLL
    for (int begin = 0; begin < Shape::kPanelLines; begin += 16) {
      if (begin < left) write_panel<T, Shape>(sums + (first + begin) / 2, panel, begin);
    }
    fence_async_proxy();  // each thread's writes, before TMA reads them
    // After the barrier the next part may be overwritten: TMA has read it.
    if (thread == 0) wait_bulk_groups_read<Shape::kParts - 2>();
    named_barrier_sync(stored.barrier, kWarpgroupThreads);
    stored.advance();
    const int row = place.row + first, box = product.box;
    const int boxes = (lines + box - 1) / box;
    const bool is_whole =
        row >= place.begin && (row + boxes * box <= place.end || place.end == product.m);
    if (!product.is_stored_by_tma || !is_whole) {
      copy_lines<T, Shape>(panel, epilogue, product.is_stored_by_tma, row, column, place.begin,
                           row + lines);
    } else if (thread == 0) {
      for (int line = 0; line < lines; line += box) {
        tma_store(map_c, panel + line * GroupedWgmma::kLineBytes, {column, row + line, 0, 0});
      }
      commit_bulk_group();
    }
  }
}

// Stores a consumer's rows of a tile of a group of K.
template <typename T, typename Shape>
DIGLOT_DEVICE void store_matrix(float (&sums)[Shape::kSums], TmaParts<Shape>& stored,
                                const TensorMap& map_c, const Epilogue<T>& epilogue,
                                const GroupedWgmma& product, const GroupedWgmma::Place& place,
                                int row) {
  for_each_part<Shape>(sums, [&](auto& part, int first) {
    if (first >= place.width) return;
    write_part<T, Shape>(part, stored);
    if (product.is_stored_by_tma) {
      store_part<T, Shape, sizeof(part) / 4>(stored, map_c, row, place.column + first,
                                             BatchPlace{place.matrix_c, 0});
    } else {
      const Epilogue<T> here = epilogue.moved(place.matrix_c * product.c_step, 0);
      copy_part<T, Shape, sizeof(part) / 4>(stored, here, false, row, place.column + first);
    }
  });
}

// Multiplies and stores all tiles of the block.
template <typename T, typename Shape>
DIGLOT_DEVICE void consume_groups(typename Shape::Shared& shared, Mbarrier* full, Mbarrier* empty,
                                  const TensorMap& map_c, const int32_t* offsets,
                                  const Epilogue<T>& epilogue, const GroupedWgmma& product) {
  const int consumer = consumer_number();
  GroupRing ring{product.stages};
  TmaParts<Shape> stored{shared.c[consumer], 1 + consumer};
  Group<int> group;
  for (int index = static_cast<int>(blockIdx.x); product.schedule.find(offsets, index, group);
       index += static_cast<int>(gridDim.x)) {
    const auto place = product.template place<Shape>(group, index);
    float sums[Shape::kSums];
    with_form<Shape::kFewest>(place.width, product.major_a, product.major_b,
                              [&](auto width, auto major_a, auto major_b) {
                                multiply_group<T, Shape, width, major_a, major_b>(
                                    sums, ring, shared.ring, full, empty, consumer, product, place);
                              });
    const int first = consumer * Shape::kConsumerRows;
    if constexpr (Shape::kDividesK) {
      store_matrix<T, Shape>(sums, stored, map_c, epilogue, product, place, place.row + first);
    } else {
      store_rows<T, Shape>(sums, stored, map_c, epilogue, product, place, place.column + first);
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
  if (threadIdx.x == Shape::kThreads - 1) {  // a thread with nothing else to do
    tma_prefetch_map(a);
    tma_prefetch_map(b);
    if (product.is_stored_by_tma) tma_prefetch_map(map_c);
  }
  share_out<Shape>(
      [&](auto& shared, const auto&) {
        produce_groups<Shape>(shared, shared.barriers.full, shared.barriers.empty, a, b, offsets,
                              product);
      },
      [&](auto& shared, const auto&) {
        consume_groups<T, Shape>(shared, shared.barriers.full, shared.barriers.empty, map_c,
                                 offsets, epilogue, product);
      });
}

}  // namespace diglot
