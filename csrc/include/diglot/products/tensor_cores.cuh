// Products of 16-bit and TF32 matrices on Hopper's tensor cores. Twin of
// triton_ops/lib/products/descriptors.py. docs/products.md steps through it.
//
// One block runs on each SM and computes tiles of 128 x kColumns elements of C, one after the
// other. A thread, the producer, has TMA load tiles of A and B into a ring of stages. It goes on to
// the next tile of C while the others finish the last. Two warpgroups, the consumers, multiply the
// tiles of a stage, 64 rows each. They leave C's tile in shared memory, and TMA stores it.
//
// A and B may each be contiguous along K or along the other side: TMA and wgmma take both. Those of
// TF32, which are float32 in memory, must be contiguous along K.
//
// Products of few rows exchange their operands: tiles are those of C's transpose, B^T A^T. Columns
// of C then fill the 64 rows of wgmma, and few rows of C make a narrow tile. Below, A is then B^T.
// Narrow tiles have one consumer: half the rows make twice the tiles, for more SMs.
// Products of few tiles split K (split.cuh).
//
// Consumers may take turns: each multiplies whole tiles, twice 64 rows, while the other finishes
// its last one. So tensor cores need not wait for activations.
//
// Blocks may form a cluster. Those whose tiles lie one below the other share the tiles of B: each
// loads a share of them, and TMA writes it to all of them. Those beside each other share the tiles
// of A. L2 is asked for fewer bytes.
#pragma once

#include "diglot/mma/matrix.cuh"
#include "diglot/mma/tma.cuh"
#include "diglot/mma/warpgroup.cuh"
#include "diglot/mma/wgmma.cuh"
#include "diglot/products/accumulators.cuh"
#include "diglot/products/row_sums.cuh"
#include "diglot/products/split.cuh"
#include "diglot/sync/cluster.cuh"
#include "diglot/types.cuh"

namespace diglot {

// Dimensions of a batch beside a matrix's two: TMA takes five in all.
constexpr int kTmaBatchRank = 2;

template <typename T>
constexpr MmaType kMmaType = MmaType::kBfloat16;
template <>
inline constexpr MmaType kMmaType<float16> = MmaType::kFloat16;
template <>
inline constexpr MmaType kMmaType<float> = MmaType::kTf32;

// The rows of ordinary tiles.
constexpr int rows_of_tile(bool is_exchanged, int columns) {
  return is_exchanged && columns <= 64 ? 64 : 128;
}

// kIsPlain: nothing but a bias follows the sums. kIsActivated: a bias and an activation may, and a
// copy of what this one takes. So kernels of such products have little code, and it is soon in the
// instruction cache.
template <typename T, int kColumns_, bool kIsExchanged_ = false, bool kIsPlain_ = false,
          bool kTakesTurns_ = false, int kRows_ = rows_of_tile(kIsExchanged_, kColumns_),
          bool kIsActivated_ = false>
struct WgmmaShape {
  static constexpr bool kIsExchanged = kIsExchanged_, kIsPlain = kIsPlain_;
  static constexpr bool kIsActivated = kIsActivated_;
  static constexpr bool kTakesTurns = kTakesTurns_;
  static constexpr bool kHasRowSums = false;
  // Whether blocks may share tiles. No plan has asked for it in other kernels. In some of them the
  // producer has too few registers.
  static constexpr bool kShares = sizeof(T) == 2 && !kTakesTurns_ && kRows_ <= 128;
  static constexpr int kBytes = sizeof(T);
  static constexpr int kLine = 128 / kBytes;  // elements that a swizzle of 128 bytes spans
  static constexpr int kColumns = kColumns_, kDepth = kLine;
  static constexpr int kConsumers = kTakesTurns_ ? 2 : kRows_ / 64;
  // A consumer has kHalves times 64 rows of a tile.
  static constexpr int kConsumerRows = 64, kHalves = kTakesTurns ? 2 : 1;
  static constexpr int kRows = (kTakesTurns ? kHalves : kConsumers) * kConsumerRows;
  static_assert(kRows == kRows_);
  static constexpr int kReaders = kTakesTurns ? 1 : kConsumers;  // of a stage
  // Consumers, and behind them the producer: a warpgroup, which gives registers to the others.
  static constexpr bool kMovesRegisters = kConsumers > 1;
  static constexpr int kConsumerRegisters = kConsumers > 2 ? 160 : 232;
  static constexpr int kProducerRegisters = kConsumers > 2 ? 32 : 40;
  static constexpr int kProducerThreads = kMovesRegisters ? kWarpgroupThreads : 32;
  static constexpr int kThreads = kConsumers * kWarpgroupThreads + kProducerThreads;
  static constexpr int kSums = kColumns / 2;  // of a thread

  // A panel of B is a line wide, so B may have more columns than the tile.
  static constexpr int kBytesA = kRows * kDepth * kBytes;
  static constexpr int kBytesB = (kColumns + kLine - 1) / kLine * kLine * kDepth * kBytes;

  // C is stored in parts of one or two panels, so that the ring has more room. Lines of a panel are
  // rows of C: of an exchanged tile 16, 32 or 64 at a time.
  static constexpr int kMostLines = kColumns % 64 == 0 ? 64 : 32;
  static constexpr int kExchangedLines = kColumns < kMostLines ? kColumns : kMostLines;
  static constexpr int kPanel = kIsExchanged ? kConsumerRows : 32;  // columns of C
  static constexpr int kPanelLines = kIsExchanged ? kExchangedLines : kConsumerRows;
  static constexpr int kPanelColumns = kIsExchanged ? kPanelLines : kPanel;  // of the tile
  static constexpr Swizzle kPanelSwizzle =
      kIsExchanged || kBytes == 4 ? Swizzle::k128 : Swizzle::k64;
  static constexpr int kPanels = kColumns / kPanelColumns;
  static constexpr int kMostPanels = kIsExchanged || kConsumers > 2 ? 1 : 4 / kBytes;
  static constexpr int kPartPanels = kPanels < kMostPanels ? kPanels : kMostPanels;
  static constexpr int kPartBytes = kPartPanels * kPanel * kPanelLines * kBytes;
  static constexpr int kParts = kTakesTurns ? 4 : 2;  // that shared memory holds

  static constexpr int kSharedBytes = 227 * 1024;
  static constexpr int kFittingStages =
      (kSharedBytes - 1024 - kConsumers * kParts * kPartBytes) / (kBytesA + kBytesB);
  static constexpr int kMostStages = 16 / kConsumers;
  static constexpr int kStages = kFittingStages < kMostStages ? kFittingStages : kMostStages;
  static_assert(kStages >= 3 && kColumns % kPanelColumns == 0 && kColumns % 16 == 0);

  template <Major kMajor>
  using TileA = SmemTile<kMmaType<T>, kMajor, Swizzle::k128, kRows, kDepth>;
  template <Major kMajor>
  using TileB = SmemTile<kMmaType<T>, kMajor, Swizzle::k128, kColumns, kDepth>;
  using PanelC = SmemTile<kMmaType<T>, Major::kK, kPanelSwizzle, kPanelLines, kPanel>;

  struct Shared {
    char a[kStages][kBytesA];
    char b[kStages][kBytesB];
    char c[kConsumers][kParts][kPartPanels][PanelC::kBytes];
    Mbarrier are_there[kConsumers];  // of ClusterParts
  };
  static_assert(sizeof(Shared) <= kSharedBytes - 1024);
};

// Of 16-bit operands, while C is float32. Its panels take as many bytes as two of C with 16 bits.
template <typename T, int kColumns_>
struct WideShape : WgmmaShape<T, kColumns_> {
  using Narrow = WgmmaShape<T, kColumns_>;
  static constexpr bool kShares = false;
  static constexpr int kPartPanels = 1;
  static constexpr Swizzle kPanelSwizzle = Swizzle::k128;
  using PanelC =
      SmemTile<MmaType::kTf32, Major::kK, kPanelSwizzle, Narrow::kPanelLines, Narrow::kPanel>;
  static_assert(PanelC::kBytes == Narrow::kPartBytes);

  struct Shared {
    char a[Narrow::kStages][Narrow::kBytesA];
    char b[Narrow::kStages][Narrow::kBytesB];
    char c[Narrow::kConsumers][Narrow::kParts][kPartPanels][PanelC::kBytes];
    Mbarrier are_there[Narrow::kConsumers];  // of ClusterParts
  };
};

// Of products of 16 bits that also sum A's rows. The sides of A and B are contiguous, as those of
// the gradients and inputs that make a weight's gradient.
template <typename T, int kColumns_>
struct SummedShape : WgmmaShape<T, kColumns_, false, true> {
  using Plain = WgmmaShape<T, kColumns_, false, true>;
  static constexpr bool kHasRowSums = true, kShares = false;

  struct Shared : Plain::Shared {
    alignas(RowSums<T, kMmaType<T>>::Ones::kAlignment) T ones[Plain::kConsumers][kWarpgroupThreads];
  };
  static_assert(sizeof(Shared) <= Plain::kSharedBytes - 1024);
};

// How an operand's matrices lie in a batch: 0 where all share one along a dimension.
struct TmaBatch {
  int step[kTmaBatchRank];
};

// The blocks of a cluster that share tiles. Their tiles of C make `rows` x `columns`, by rank down
// the first column, and then down the next.
struct Sharing {
  int rows = 1;     // 1, 2 or 4
  int columns = 1;  // 1 or 2

  DIGLOT_HOST_DEVICE int blocks() const { return rows * columns; }
  // How many blocks receive a part of one block's loads, itself included.
  DIGLOT_HOST_DEVICE int receivers() const { return rows + columns - 1; }
  // This block's place among them, and the number of its cluster.
  DIGLOT_DEVICE int rank() const { return static_cast<int>(blockIdx.x) & (blocks() - 1); }
  DIGLOT_DEVICE int row() const { return rank() & (rows - 1); }
  DIGLOT_DEVICE int column() const { return rank() >> log(rows); }
  DIGLOT_DEVICE uint32_t cluster() const { return blockIdx.x >> (log(rows) + log(columns)); }
  DIGLOT_DEVICE uint32_t clusters() const { return gridDim.x >> (log(rows) + log(columns)); }

  // The logarithm of 1, 2 or 4 to base 2.
  DIGLOT_HOST_DEVICE static constexpr int log(int size) { return size >> 1; }
};

struct WgmmaProduct {
  Major major_a, major_b;
  SplitSchedule schedule;  // a cluster counts as one, and has a tile for each block that shares
  Sharing sharing;
  bool meets;             // whether blocks that have parts of a tile form a cluster
  int64_t inner_batches;  // those of the batch's first dimension
  TmaBatch in_a, in_b, in_c;
  // Whether TMA can store C. Otherwise threads do.
  bool is_stored_by_tma;
  int64_t batch_strides[kTmaBatchRank];        // of C
  int64_t input_batch_strides[kTmaBatchRank];  // of the epilogue's input
};

// How a block shares tiles. Shapes without sharing get a constant.
template <typename Shape>
DIGLOT_DEVICE Sharing sharing_of(const WgmmaProduct& product) {
  if constexpr (Shape::kShares) return product.sharing;
  return {};
}

// The stages of the ring in turn, and the parity of their current phase.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  DIGLOT_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  DIGLOT_DEVICE void advance(int count) {
    stage += count;
    const int rounds = stage / kStages;
    stage -= rounds * kStages;
    parity ^= static_cast<uint32_t>(rounds) & 1;
  }
};

struct BatchPlace {
  int inner, outer;
};
// The planner sees to it that there are less than 2^31 matrices. Dividing 64 bits is a call, for
// which a full set of sums would leave no registers.
DIGLOT_DEVICE BatchPlace place_in_batch(const WgmmaProduct& product, int64_t batch) {
  if (product.schedule.tiles.batches == 1) return {0, 0};
  const auto number = static_cast<uint32_t>(batch);
  const auto inner = static_cast<uint32_t>(product.inner_batches), outer = number / inner;
  return {static_cast<int>(number - outer * inner), static_cast<int>(outer)};
}

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

// This block's share of a tile that some blocks of its cluster use: of a panel, some lines.
struct Share {
  int number, log;  // among 2^log
  uint16_t blocks;  // a bit for each block that gets it

  DIGLOT_DEVICE static Share of_a(const Sharing& sharing) {
    const int beside = 1 | 1 << sharing.rows;
    return {sharing.column(), 1, static_cast<uint16_t>(beside << sharing.row())};
  }
  DIGLOT_DEVICE static Share of_b(const Sharing& sharing) {
    const int below = (1 << sharing.rows) - 1;
    return {sharing.row(), Sharing::log(sharing.rows),
            static_cast<uint16_t>(below << sharing.rows * sharing.column())};
  }
};

// Loads a share of a tile for all blocks that use it.
template <int kSide, int kDepth, int kLine, typename Batch>
DIGLOT_DEVICE void load_share(const TensorMap& map, char* tile, Mbarrier& full, Major major,
                              int side, int depth, const Batch& batch, const Share& share) {
  constexpr int kLineBytes = 128;
  if (major == Major::kK) {
    const int first = share.number * (kSide >> share.log);
    tma_load_multicast(map, tile + first * kLineBytes, full,
                       {depth, side + first, batch.inner, batch.outer}, share.blocks);
  } else {
    const int line = share.number * (kDepth >> share.log);
    DIGLOT_UNROLL
    for (int first = 0; first < kSide; first += kLine) {
      tma_load_multicast(map, tile + first * kDepth * 2 + line * kLineBytes, full,
                         {side + first, depth + line, batch.inner, batch.outer}, share.blocks);
    }
  }
}

// A consumer hands a stage back, to the producers of all blocks that loaded something of it: those
// in its row and in its column. A thread tells one of them. Ranks are computed here each time,
// since sums fill the registers.
DIGLOT_DEVICE void release_stage(Mbarrier& empty, const Sharing& sharing = {}) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  if (thread >= sharing.receivers()) return;
  if (sharing.blocks() == 1) return empty.arrive();
  const int row = sharing.row(), column = sharing.column(), rows = sharing.rows;
  empty.release_at(thread < rows ? rows * column + thread : rows * (1 - column) + row);
}

DIGLOT_DEVICE BatchPlace operator*(const BatchPlace& place, const TmaBatch& batch) {
  return {place.inner * batch.step[0], place.outer * batch.step[1]};
}

// Where a step's tiles of A and B begin, and in which matrices of a batch they are.
struct StepPlace {
  int row, column, depth;
  BatchPlace in_a, in_b;
};

// Fills the next stage of the ring.
template <typename Shape>
DIGLOT_DEVICE void produce_stage(typename Shape::Shared& shared, Ring<Shape::kStages>& ring,
                                 Mbarrier* full, Mbarrier* empty, const TensorMap& a,
                                 const TensorMap& b, Major major_a, Major major_b,
                                 const StepPlace& place, const Sharing& sharing = {}) {
  // Along N, K-major tiles have no more columns than C's; N-major ones have whole panels.
  const uint32_t bytes_b =
      major_b == Major::kK ? Shape::kColumns * Shape::kDepth * Shape::kBytes : Shape::kBytesB;
  // The phase before a new barrier's first counts as ended: the first round waits for nobody.
  Mbarrier& free = empty[ring.stage];
  const bool is_alone = sharing.blocks() == 1;
  is_alone ? free.wait(ring.parity ^ 1) : free.wait_for_cluster(ring.parity ^ 1);
  full[ring.stage].arrive_expect(Shape::kBytesA + bytes_b);
  if (sharing.columns == 1) {
    load_tile<Shape::kRows, Shape::kDepth, Shape::kLine>(
        a, shared.a[ring.stage], full[ring.stage], major_a, place.row, place.depth, place.in_a);
  } else {
    load_share<Shape::kRows, Shape::kDepth, Shape::kLine>(a, shared.a[ring.stage], full[ring.stage],
                                                          major_a, place.row, place.depth,
                                                          place.in_a, Share::of_a(sharing));
  }
  if (sharing.rows == 1) {
    load_tile<Shape::kColumns, Shape::kDepth, Shape::kLine>(
        b, shared.b[ring.stage], full[ring.stage], major_b, place.column, place.depth, place.in_b);
  } else {
    load_share<Shape::kColumns, Shape::kDepth, Shape::kLine>(
        b, shared.b[ring.stage], full[ring.stage], major_b, place.column, place.depth, place.in_b,
        Share::of_b(sharing));
  }
  ring.advance();
}

// Fills the ring for all tiles of the block.
template <typename Shape>
DIGLOT_DEVICE void produce_stages(typename Shape::Shared& shared, Mbarrier* full, Mbarrier* empty,
                                  const TensorMap& a, const TensorMap& b,
                                  const WgmmaProduct& product) {
  const Sharing sharing = sharing_of<Shape>(product);
  Ring<Shape::kStages> ring;
  const auto count = static_cast<uint32_t>(product.schedule.count());
  const uint32_t clusters = sharing.clusters();
  for (uint32_t index = sharing.cluster(); index < count; index += clusters) {
    const TilePart part = product.schedule.part(index);
    const Tile tile = part.tile;
    const BatchPlace batch = place_in_batch(product, tile.batch);
    StepPlace place{(tile.row * sharing.rows + sharing.row()) * Shape::kRows,
                    (tile.column * sharing.columns + sharing.column()) * Shape::kColumns,
                    part.first * Shape::kDepth, batch * product.in_a, batch * product.in_b};
    for (int step = part.first; step < part.end; ++step, place.depth += Shape::kDepth) {
      produce_stage<Shape>(shared, ring, full, empty, a, b, product.major_a, product.major_b, place,
                           sharing);
    }
  }
}

// sums = a consumer's rows of a tile of C. The products of a stage run while the next one's are
// issued; then the stage before is free. on_issued() is called when the products of the last stage
// are issued. `of_rows` are RowSums, or none.
template <typename T, typename Shape, Major kMajorA, Major kMajorB, typename OnIssued,
          typename OfRows>
DIGLOT_DEVICE void multiply_stages(float (&sums)[Shape::kHalves][Shape::kSums],
                                   Ring<Shape::kStages>& ring, typename Shape::Shared& shared,
                                   Mbarrier* full, Mbarrier* empty, int first_row, int steps,
                                   const Sharing& sharing, const OnIssued& on_issued,
                                   OfRows& of_rows) {
  using TileA = typename Shape::template TileA<kMajorA>;
  using TileB = typename Shape::template TileB<kMajorB>;
  constexpr MmaType kType = kMmaType<T>;
  int previous = 0;
  DIGLOT_UNROLL
  for (auto& half : sums) {
    DIGLOT_UNROLL
    for (float& sum : half) sum = 0;
    fence_accumulators(half);
  }
  of_rows.begin();
  for (int step = 0; step < steps; ++step) {
    full[ring.stage].wait(ring.parity);
    const uint32_t a = shared_address(shared.a[ring.stage]);
    const uint32_t b = shared_address(shared.b[ring.stage]);
    wgmma_fence();
    DIGLOT_UNROLL
    for (int k = 0; k < Shape::kDepth; k += depth_of(kType)) {
      DIGLOT_UNROLL
      for (int half = 0; half < Shape::kHalves; ++half) {
        const int row = first_row + half * Shape::kConsumerRows;
        wgmma<kType, kType, kMajorA, kMajorB>(sums[half], TileA::descriptor(a, row, k),
                                              TileB::descriptor(b, 0, k), true);
        of_rows.template add<kMajorA>(TileA::descriptor(a, row, k));
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) release_stage(empty[previous], sharing);
    previous = ring.stage;
    ring.advance();
  }
  on_issued();
  wgmma_wait<0>();
  DIGLOT_UNROLL
  for (auto& half : sums) fence_accumulators(half);
  of_rows.end();
  if (steps > 0) release_stage(empty[previous], sharing);
}

// The same for the operands' layout: one mainloop for each.
template <typename T, typename Shape, typename OnIssued, typename OfRows>
DIGLOT_DEVICE void multiply_stages(float (&sums)[Shape::kHalves][Shape::kSums],
                                   Ring<Shape::kStages>& ring, typename Shape::Shared& shared,
                                   Mbarrier* full, Mbarrier* empty, int first_row, Major order_a,
                                   Major order_b, int steps, const Sharing& sharing,
                                   const OnIssued& on_issued, OfRows& of_rows) {
  const auto multiply = [&](auto major_a, auto major_b) {
    multiply_stages<T, Shape, decltype(major_a)::value, decltype(major_b)::value>(
        sums, ring, shared, full, empty, first_row, steps, sharing, on_issued, of_rows);
  };
  constexpr std::integral_constant<Major, Major::kK> kAlongK;
  constexpr std::integral_constant<Major, Major::kMn> kAlongMn;
  if constexpr (sizeof(T) == 4) {
    multiply(kAlongK, kAlongK);
  } else if constexpr (Shape::kHasRowSums) {
    multiply(kAlongMn, kAlongMn);
  } else if (order_a == Major::kK) {
    order_b == Major::kK ? multiply(kAlongK, kAlongK) : multiply(kAlongK, kAlongMn);
  } else {
    order_b == Major::kK ? multiply(kAlongMn, kAlongK) : multiply(kAlongMn, kAlongMn);
  }
}

template <typename T, typename Shape>
using RowSumsOf = std::conditional_t<Shape::kHasRowSums, RowSums<T, kMmaType<T>>, NoRowSums>;

// The number of this warpgroup among the consumers. By a shuffle, so that the compiler knows that a
// warp has one number, and one descriptor of A.
DIGLOT_DEVICE int consumer_number() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
}

// Finishes and stores 64 rows of a tile, which begin at `row`. `has(column)`: whether this block
// stores the part of the tile that begins at this column.
template <typename T, typename Shape, typename Has>
DIGLOT_DEVICE void finish_rows(float (&sums)[Shape::kSums], TmaParts<Shape>& stored,
                               const TensorMap& map_c, const TensorMap& map_before,
                               const Epilogue<T>& epilogue, const WgmmaProduct& product,
                               const TileBias<T, Shape>* kept_bias, int row, int column,
                               const BatchPlace& place, Has has) {
  const auto offset = [&](const int64_t (&strides)[kTmaBatchRank]) {
    return place.inner * strides[0] + place.outer * strides[1];
  };
  const auto store = [&](auto& part, int first, bool is_before) {
    if (!has(first)) return;
    write_part<T, Shape>(part, stored);
    if (product.is_stored_by_tma) {
      store_part<T, Shape, sizeof(part) / 4>(stored, is_before ? map_before : map_c, row,
                                             column + first, place * product.in_c);
    } else {
      const Epilogue<T> here = epilogue.moved(offset(product.batch_strides), 0);
      copy_part<T, Shape, sizeof(part) / 4>(stored, here, is_before, row, column + first);
    }
  };
  if constexpr (Shape::kIsPlain || Shape::kIsActivated) {
    scale(sums, epilogue.alpha);
    if (kept_bias != nullptr) {
      kept_bias->add(sums, epilogue);
    } else {
      TileBias<T, Shape> bias;
      bias.load(epilogue, row, column);
      bias.add(sums, epilogue);
    }
    for_each_part_in_loop<Shape>(sums, [&](auto& part, int first) {
      if constexpr (Shape::kIsActivated) {
        if (epilogue.before != nullptr) store(part, first, true);
        activate_part<T>(part, epilogue.activation);
      }
      store(part, first, false);
    });
  } else {
    finish_parts<T, Shape>(sums, epilogue.moved(0, offset(product.input_batch_strides)), row,
                           column, store);
  }
}

// Two consumers' turns at the ring, by a barrier of each. A consumer must not wait for a stage
// before its turn: an mbarrier tells a phase from the next one alone.
template <typename Shape>
struct Turns {
  static constexpr int kFirst = 1 + Shape::kConsumers;  // the barriers' numbers
  static constexpr int kThreads = Shape::kConsumers * kWarpgroupThreads;

  int consumer;

  DIGLOT_DEVICE void begin() const {
    if (Shape::kTakesTurns && consumer == 1) pass();
  }
  DIGLOT_DEVICE void await() const {
    if constexpr (Shape::kTakesTurns) named_barrier_sync(kFirst + consumer, kThreads);
  }
  DIGLOT_DEVICE void pass() const {
    if constexpr (Shape::kTakesTurns) named_barrier_arrive(kFirst + 1 - consumer, kThreads);
  }
};

// Multiplies and stores all tiles of the block, or those of this consumer's turns. C is of type
// Out. `sums_of_rows`: where those of A's rows go, if Shape has them.
template <typename T, typename Shape, typename Out>
DIGLOT_DEVICE void consume_stages(typename Shape::Shared& shared, Mbarrier* full, Mbarrier* empty,
                                  const TensorMap& map_c, const TensorMap& map_before,
                                  const Epilogue<Out>& epilogue, char* scratch,
                                  const WgmmaProduct& product, Out* sums_of_rows = nullptr) {
  // Sums of 16-bit types leave registers for a bias, where little else follows them.
  constexpr bool kKeepsBias =
      sizeof(T) == 2 && (Shape::kIsPlain || Shape::kIsActivated) && !Shape::kHasRowSums;
  const int consumer = consumer_number();
  const Sharing sharing = sharing_of<Shape>(product);
  const int tile_row = Shape::kTakesTurns ? 0 : consumer * Shape::kConsumerRows;
  Ring<Shape::kStages> ring;
  TmaParts<Shape> stored{shared.c[consumer], 1 + consumer};
  const auto count = static_cast<uint32_t>(product.schedule.count());
  const uint32_t clusters = sharing.clusters();
  const uint32_t turn = Shape::kTakesTurns ? static_cast<uint32_t>(consumer) : 0;
  const Turns<Shape> turns{consumer};
  uint64_t ones = 0;
  if constexpr (Shape::kHasRowSums) {
    ones = RowSums<T, kMmaType<T>>::make_ones(shared.ones[consumer], stored.barrier);
  }
  turns.begin();
  if (turn > 0) ring.advance(product.schedule.steps);
  for (uint32_t index = sharing.cluster() + turn * clusters; index < count;
       index += clusters * (Shape::kTakesTurns ? 2 : 1)) {
    const TilePart part = product.schedule.part(index);
    const Tile tile = part.tile;
    const int row = (tile.row * sharing.rows + sharing.row()) * Shape::kRows + tile_row;
    const int column = (tile.column * sharing.columns + sharing.column()) * Shape::kColumns;
    TileBias<Out, Shape> bias;
    if constexpr (kKeepsBias) bias.load(epilogue, row, column);
    float sums[Shape::kHalves][Shape::kSums];
    turns.await();
    const auto multiply = [&](auto& of_rows) {
      multiply_stages<T, Shape>(
          sums, ring, shared, full, empty, tile_row, product.major_a, product.major_b,
          part.end - part.first, sharing,
          [&] {
            if (index + clusters < count) turns.pass();
          },
          of_rows);
    };
    RowSumsOf<T, Shape> of_rows{ones};
    if constexpr (Shape::kHasRowSums) {
      NoRowSums none;
      column == 0 ? multiply(of_rows) : multiply(none);
    } else {
      multiply(of_rows);
    }
    const BatchPlace place = place_in_batch(product, tile.batch);
    const auto finish = [&](auto& half, int first, auto has) {
      finish_rows<Out, Shape>(half, stored, map_c, map_before, epilogue, product,
                              kKeepsBias ? &bias : nullptr, row + first, column, place, has);
    };
    const auto has_all = [](int) { return true; };
    if constexpr (Shape::kTakesTurns) {
      DIGLOT_NO_UNROLL
      for (int half = 0; half < Shape::kHalves; ++half) {
        finish(sums[0], half * Shape::kConsumerRows, has_all);
        DIGLOT_UNROLL
        for (int i = 0; i < Shape::kSums; ++i) sums[0][i] = sums[1][i];
      }
      ring.advance(product.schedule.steps);  // the other consumer's
    } else {
      const int parts = product.schedule.parts;
      const ClusterParts<Shape> in_cluster{shared, consumer, stored.barrier, part.part, parts};
      if (product.meets) {
        in_cluster.add(sums[0]);
      } else if (parts > 1 && !of_rows.with(sums[0], [&](auto& all) {
                   return add_parts<Shape::kConsumers>(all, scratch, part, parts, consumer,
                                                       stored.barrier);
                 })) {
        continue;
      }
      if constexpr (Shape::kHasRowSums) {
        if (column == 0) of_rows.store(sums_of_rows, row, static_cast<int>(epilogue.m));
      }
      finish(sums[0], 0, [&](int first) { return !product.meets || in_cluster.has(first); });
    }
  }
  // A block's shared memory ends with the block.
  if (threadIdx.x % kWarpgroupThreads == 0) wait_bulk_groups_read<0>();
}

// The blocks of a cluster. Those that share tiles write to each other's memory from the first load
// on. Others meet when their parts of a tile are summed: their consumers await the others.
struct Cluster {
  int blocks = 1;
  bool shares = false;
  int receivers = 1;  // blocks that hand a stage back

  // Whole warps arrive. At the end they publish their arrivals at other blocks' barriers.
  template <bool kIsEnd>
  DIGLOT_DEVICE void arrive() const {
    if (blocks == 1) return;
    __syncwarp();
    kIsEnd ? cluster_arrive() : cluster_arrive_relaxed();
  }
  DIGLOT_DEVICE void wait() const {
    if (blocks > 1) cluster_wait();
  }
};

// Shares a block's warpgroups out: produce(shared, full, empty) by one thread, and consume(...) by
// the consumers. The blocks of a cluster wait for each other's barriers, and none ends while others
// reach its memory. A producer waits for nobody else before its first loads.
template <typename Shape, typename Produce, typename Consume>
DIGLOT_DEVICE void share_out(const Produce& produce, const Consume& consume, Cluster cluster = {}) {
  constexpr int kReady = 15, kWarp = 32;  // the barrier's number
  constexpr int kConsuming = Shape::kConsumers * kWarpgroupThreads;
  constexpr int kThreads = kWarp + kConsuming;
  const int thread = static_cast<int>(threadIdx.x);
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  __shared__ Mbarrier full[Shape::kStages], empty[Shape::kStages];
  if (thread >= kConsuming) {
    if (thread < kThreads) {
      if (thread == kConsuming) {
        for (Mbarrier& barrier : full) barrier.init(1);  // the producer
        // One thread of each consumer.
        for (Mbarrier& barrier : empty) barrier.init(Shape::kReaders * cluster.receivers);
        for (Mbarrier& barrier : shared.are_there) barrier.init(cluster.blocks);
        fence_mbarrier_init();
      }
      __syncwarp();
      named_barrier_arrive(kReady, kThreads);
    }
    cluster.arrive<false>();
    if (cluster.shares) cluster.wait();
    if constexpr (Shape::kMovesRegisters) release_registers<Shape::kProducerRegisters>();
    // By elect, so that the compiler knows that there is one thread. Its values are then uniform,
    // as TMA takes them. A loop over threads would take longer than a small stage's loads.
    if (thread < kThreads && elect_one()) produce(shared, full, empty);
    __syncwarp();
    if (!cluster.shares) cluster.wait();
  } else {
    cluster.arrive<false>();
    if (cluster.shares) cluster.wait();
    if constexpr (Shape::kMovesRegisters) take_registers<Shape::kConsumerRegisters>();
    named_barrier_sync(kReady, kThreads);
    consume(shared, full, empty);
  }
  cluster.arrive<true>();
  cluster.wait();
}

template <typename Shape>
DIGLOT_DEVICE void prefetch_maps(const TensorMap& a, const TensorMap& b, const TensorMap& map_c,
                                 const WgmmaProduct& product) {
  if (threadIdx.x == Shape::kThreads - 1) {  // a thread with nothing else to do
    tma_prefetch_map(a);
    tma_prefetch_map(b);
    if (product.is_stored_by_tma) tma_prefetch_map(map_c);
  }
}

template <typename T, typename Shape, typename Out>
DIGLOT_DEVICE void multiply_by_wgmma(const TensorMap& a, const TensorMap& b, const TensorMap& map_c,
                                     const TensorMap& map_before, const Epilogue<Out>& epilogue,
                                     char* scratch, const WgmmaProduct& product) {
  const Sharing sharing = sharing_of<Shape>(product);
  prefetch_maps<Shape>(a, b, map_c, product);
  share_out<Shape>(
      [&](auto& shared, Mbarrier* full, Mbarrier* empty) {
        produce_stages<Shape>(shared, full, empty, a, b, product);
      },
      [&](auto& shared, Mbarrier* full, Mbarrier* empty) {
        consume_stages<T, Shape>(shared, full, empty, map_c, map_before, epilogue, scratch,
                                 product);
      },
      product.meets ? Cluster{product.schedule.parts}
                    : Cluster{sharing.blocks(), true, sharing.receivers()});
}

// Multiplies and sums A's rows, by a SummedShape and without clusters. `sums_of_rows` gets the
// sums.
template <typename T, typename Shape>
DIGLOT_DEVICE void multiply_and_sum_rows(const TensorMap& a, const TensorMap& b,
                                         const TensorMap& map_c, const Epilogue<T>& epilogue,
                                         T* sums_of_rows, char* scratch,
                                         const WgmmaProduct& product) {
  prefetch_maps<Shape>(a, b, map_c, product);
  share_out<Shape>(
      [&](auto& shared, Mbarrier* full, Mbarrier* empty) {
        produce_stages<Shape>(shared, full, empty, a, b, product);
      },
      [&](auto& shared, Mbarrier* full, Mbarrier* empty) {
        consume_stages<T, Shape>(shared, full, empty, map_c, map_c, epilogue, scratch, product,
                                 sums_of_rows);
      });
}

}  // namespace diglot
