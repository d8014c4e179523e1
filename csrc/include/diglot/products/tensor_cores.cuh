// Products of 16-bit and TF32 matrices on Hopper's tensor cores. Twin of
// triton_ops/lib/products/descriptors.py. docs/products.md steps through it.
//
// One block runs on each SM and computes tiles of 128 x kColumns elements of C, one after the
// other. Two threads, the producers, have TMA load tiles of A and of B into a ring of stages. They
// go on to the next tile of C while the others finish the last. Two warpgroups, the consumers,
// multiply the tiles of a stage, 64 rows each. They leave C's tile in shared memory, and TMA stores
// it.
//
// A and B may each be contiguous along K or along the other side: TMA and wgmma take both. Those of
// TF32, which are float32 in memory, must be contiguous along K.
//
// Products of few rows exchange their operands: tiles are those of C's transpose, B^T A^T. Columns
// of C then fill the 64 rows of wgmma, and few rows of C make a narrow tile. Below, A is then B^T.
// Narrow tiles have one consumer: half the rows make twice the tiles, for more SMs.
// Products of few tiles split K, and so may the last round of tiles (split.cuh).
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
#include "diglot/products/ring.cuh"
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
  return is_exchanged && columns < 128 ? 64 : 128;
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
  // Consumers, and behind them the producers: a warpgroup, which gives registers to the others.
  static constexpr bool kMovesRegisters = kConsumers > 1;
  static constexpr int kConsumerRegisters = kConsumers > 2 ? 160 : 232;
  static constexpr int kProducerRegisters = kConsumers > 2 ? 32 : 40;
  static constexpr int kProducerThreads = kMovesRegisters ? kWarpgroupThreads : 64;
  static constexpr int kThreads = kConsumers * kWarpgroupThreads + kProducerThreads;
  static constexpr int kSums = kColumns / 2;  // of a thread
  // Whether loops keep addresses in registers: in each step of a small tile, to compute them takes
  // longer than its products. A single consumer has registers for them.
  static constexpr bool kKeepsAddresses = kConsumers == 1 || kHalves * kSums <= 64;

  // A panel of B is a line wide, so B may have more columns than the tile.
  static constexpr int kBytesA = kRows * kDepth * kBytes;
  static constexpr int kBytesB = (kColumns + kLine - 1) / kLine * kLine * kDepth * kBytes;

  // C is stored in parts of one or two panels, so that the ring has more room. Lines of a panel are
  // rows of C: of an exchanged tile 16, 32 or 64 at a time. Small tiles have two parts too: where
  // parts of K meet, two blocks then finish the tile.
  static constexpr int kMostLines = kColumns % 32 != 0                    ? 16
                                    : kColumns > 64 && kColumns % 64 == 0 ? 64
                                                                          : 32;
  static constexpr int kExchangedLines = kColumns < kMostLines ? kColumns : kMostLines;
  static constexpr int kPanel = kIsExchanged ? kConsumerRows : 32;  // columns of C
  static constexpr int kPanelLines = kIsExchanged ? kExchangedLines : kConsumerRows;
  static constexpr int kPanelColumns = kIsExchanged ? kPanelLines : kPanel;  // of the tile
  static constexpr Swizzle kPanelSwizzle =
      kIsExchanged || kBytes == 4 ? Swizzle::k128 : Swizzle::k64;
  static constexpr int kPanels = kColumns / kPanelColumns;
  static constexpr int kMostPanels =
      kIsExchanged || kConsumers > 2 || kColumns <= 64 ? 1 : 4 / kBytes;
  static constexpr int kPartPanels = kPanels < kMostPanels ? kPanels : kMostPanels;
  static constexpr int kPartBytes = kPartPanels * kPanel * kPanelLines * kBytes;
  static constexpr int kParts = kTakesTurns ? 4 : 2;  // that shared memory holds

  static constexpr int kSharedBytes = 227 * 1024;
  static constexpr int kFittingStages =
      (kSharedBytes - 2048 - kConsumers * kParts * kPartBytes) / (kBytesA + kBytesB);
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
    RingBarriers<kStages, kConsumers> barriers;
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

  struct Shared {
    char a[Narrow::kStages][Narrow::kBytesA];
    char b[Narrow::kStages][Narrow::kBytesB];
    char c[Narrow::kConsumers][Narrow::kParts][kPartPanels][PanelC::kBytes];
    RingBarriers<Narrow::kStages, Narrow::kConsumers> barriers;
  };
  static_assert(sizeof(Shared) <= Narrow::kSharedBytes - 1024);
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

  // This block's tile of those that the cluster has.
  DIGLOT_DEVICE Tile own(const Tile& tile) const {
    return {tile.row * rows + row(), tile.column * columns + column(), tile.batch};
  }

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

// This block's share of a tile that some blocks of its cluster use: of a panel, some lines.
struct Share {
  int number = 0, log = 0;  // among 2^log
  uint16_t blocks = 0;      // a bit for each block that gets it; 0: this one alone has the tile

  DIGLOT_DEVICE static Share of_a(const Sharing& sharing) {
    if (sharing.columns == 1) return {};
    const int beside = 1 | 1 << sharing.rows;
    return {sharing.column(), 1, static_cast<uint16_t>(beside << sharing.row())};
  }
  DIGLOT_DEVICE static Share of_b(const Sharing& sharing) {
    if (sharing.rows == 1) return {};
    const int below = (1 << sharing.rows) - 1;
    return {sharing.row(), Sharing::log(sharing.rows),
            static_cast<uint16_t>(below << sharing.rows * sharing.column())};
  }
};

// A consumer hands a stage back to the producers that loaded something of it: those in the block's
// row and in its column of the cluster. Each of the first threads tells one of them.
template <typename Shape>
class Release {
 public:
  DIGLOT_DEVICE Release(const RingPlaces<Shape>& at, const Sharing& sharing)
      : at_(at), sharing_(sharing), to_(find()) {}

  DIGLOT_DEVICE void operator()(int stage) const {
    // Many sums leave no register for an address.
    const RingPlaces<Shape> to = Shape::kKeepsAddresses ? to_ : find();
    if (to.first != 0) release_at(to.empty(stage), sharing_.blocks() == 1);
  }

 private:
  // In the block that this thread tells. `first` is 0 if the thread tells nobody: the first KiB of
  // shared memory is the system's.
  DIGLOT_DEVICE RingPlaces<Shape> find() const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
    if (thread >= sharing_.receivers()) return {0};
    if (sharing_.blocks() == 1) return at_;
    const int row = sharing_.row(), column = sharing_.column(), rows = sharing_.rows;
    const int rank = thread < rows ? rows * column + thread : rows * (1 - column) + row;
    return {cluster_address(at_.first, static_cast<uint32_t>(rank))};
  }

  RingPlaces<Shape> at_;
  Sharing sharing_;
  RingPlaces<Shape> to_;
};

// A consumer hands a stage back, in a block without a cluster.
DIGLOT_DEVICE void release_stage(Mbarrier& empty) {
  if (threadIdx.x % kWarpgroupThreads == 0) empty.arrive();
}

DIGLOT_DEVICE BatchPlace operator*(const BatchPlace& place, const TmaBatch& batch) {
  return {place.inner * batch.step[0], place.outer * batch.step[1]};
}

// The loads of A or B for a tile of C. `side` is where they begin along M or N.
template <int kSide, int kDepth, int kLine>
struct TileLoads {
  int side, line;  // `line`: where this block's share begins along K, if panels have lines along it
  uint32_t to;     // in the first stage
  uint16_t blocks;  // that get the share

  DIGLOT_DEVICE TileLoads(uint32_t first, bool is_along_k, int begin, const Share& share)
      : blocks(share.blocks) {
    constexpr int kLineBytes = 128;
    line = share.number * ((is_along_k ? kSide : kDepth) >> share.log);
    to = first + static_cast<uint32_t>(line * kLineBytes);
    side = begin;
    if (is_along_k) side += line, line = 0;
  }

  // Loads a step's tile to a stage that lies some bytes later.
  DIGLOT_DEVICE void load(const TensorMap& map, bool is_along_k, int depth, const BatchPlace& batch,
                          uint32_t bytes, uint32_t full) const {
    DIGLOT_UNROLL
    for (int first = 0; first < kSide; first += kLine) {
      if (first > 0 && is_along_k) break;  // one box has all rows or columns
      const int begin[] = {is_along_k ? depth : side + first, is_along_k ? side : depth + line};
      const Coordinates at{begin[0], begin[1], batch.inner, batch.outer};
      const uint32_t place = to + bytes + static_cast<uint32_t>(first * kDepth * 2);
      if (blocks == 0) {
        tma_load(map, place, full, at);
      } else {
        tma_load_multicast(map, place, full, at, blocks);
      }
    }
  }
};

// Fills the ring for all tiles of the block, or loads one of the operands.
template <typename Shape, bool kLoadsA = true, bool kLoadsB = true>
DIGLOT_DEVICE void produce_stages(const RingPlaces<Shape>& at, const TensorMap& a,
                                  const TensorMap& b, const WgmmaProduct& product) {
  constexpr int kDepth = Shape::kDepth;
  const Sharing sharing = sharing_of<Shape>(product);
  Ring<Shape::kStages> ring;
  const bool is_a_along_k = product.major_a == Major::kK;
  const bool is_b_along_k = product.major_b == Major::kK;
  // Along N, K-major tiles have no more columns than C's; N-major ones have whole panels.
  const int bytes_b = is_b_along_k ? Shape::kColumns * kDepth * Shape::kBytes : Shape::kBytesB;
  const uint32_t bytes = (kLoadsA ? Shape::kBytesA : 0) + (kLoadsB ? bytes_b : 0);
  const BlockParts parts(product.schedule, sharing.cluster(), sharing.clusters());
  for (uint32_t number = parts.first; number < parts.limit; number = parts.after(number)) {
    const TilePart part = parts.part(number);
    const Tile tile = sharing.own(part.tile);
    const BatchPlace batch = place_in_batch(product, tile.batch);
    const int row = tile.row * Shape::kRows, column = tile.column * Shape::kColumns;
    const TileLoads<Shape::kRows, kDepth, Shape::kLine> of_a(at.a(), is_a_along_k, row,
                                                             Share::of_a(sharing));
    const TileLoads<Shape::kColumns, kDepth, Shape::kLine> of_b(at.b(), is_b_along_k, column,
                                                                Share::of_b(sharing));
    for (int step = part.first; step < part.end; ++step) {
      // The phase before a new barrier's first counts as ended: the first round waits for nobody.
      wait_for_readers(at.empty(ring.stage), ring.parity ^ 1);
      const uint32_t full = at.full(ring.stage);
      const auto stage = static_cast<uint32_t>(ring.stage);
      const int depth = step * kDepth;
      arrive_expect_at(full, bytes);
      if (kLoadsA) {
        of_a.load(a, is_a_along_k, depth, batch * product.in_a, stage * Shape::kBytesA, full);
      }
      if (kLoadsB) {
        of_b.load(b, is_b_along_k, depth, batch * product.in_b, stage * Shape::kBytesB, full);
      }
      ring.advance();
    }
  }
  if (sharing.blocks() == 1) return;
  // A block's shared memory ends with the block. Other blocks have then handed all stages back.
  for (int stage = 0; stage < Shape::kStages; ++stage, ring.advance()) {
    wait_for_readers(at.empty(ring.stage), ring.parity ^ 1);
  }
}

template <bool kKeeps>
DIGLOT_DEVICE uint64_t pinned_descriptor_if(uint64_t descriptor) {
  return descriptor >> 32 << 32 | pinned_if<kKeeps>(static_cast<uint32_t>(descriptor));
}

// sums = a consumer's rows of a tile of C. The products of a stage run while the next one's are
// issued; then the stage before is free. on_issued() is called when the products of the last stage
// are issued. `of_rows` are RowSums, or none.
template <typename T, typename Shape, Major kMajorA, Major kMajorB, typename OnIssued,
          typename OfRows>
DIGLOT_DEVICE void multiply_stages(float (&sums)[Shape::kHalves][Shape::kSums],
                                   Ring<Shape::kStages>& ring, const RingPlaces<Shape>& at,
                                   int first_row, int steps, const Release<Shape>& release,
                                   const OnIssued& on_issued, OfRows& of_rows) {
  using TileA = typename Shape::template TileA<kMajorA>;
  using TileB = typename Shape::template TileB<kMajorB>;
  constexpr MmaType kType = kMmaType<T>;
  int previous = 0;
  constexpr bool kKeeps = Shape::kKeepsAddresses;
  const uint64_t first_a = pinned_descriptor_if<kKeeps>(TileA::descriptor(at.a(), first_row, 0));
  const uint64_t first_b = pinned_descriptor_if<kKeeps>(TileB::descriptor(at.b(), 0, 0));
  DIGLOT_UNROLL
  for (auto& half : sums) {
    DIGLOT_UNROLL
    for (float& sum : half) sum = 0;
    fence_accumulators(half);
  }
  of_rows.begin();
  for (int step = 0; step < steps; ++step) {
    wait_at(at.full(ring.stage), ring.parity);
    const auto stage = static_cast<uint32_t>(ring.stage);
    wgmma_fence();
    DIGLOT_UNROLL
    for (int k = 0; k < Shape::kDepth; k += depth_of(kType)) {
      const uint64_t b = TileB::moved(first_b, stage * (Shape::kBytesB / 16), 0, k);
      DIGLOT_UNROLL
      for (int half = 0; half < Shape::kHalves; ++half) {
        const uint64_t a =
            TileA::moved(first_a, stage * (Shape::kBytesA / 16), half * Shape::kConsumerRows, k);
        wgmma<kType, kType, kMajorA, kMajorB>(sums[half], a, b, true);
        of_rows.template add<kMajorA>(a);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) release(previous);
    previous = ring.stage;
    ring.advance();
  }
  on_issued();
  wgmma_wait<0>();
  DIGLOT_UNROLL
  for (auto& half : sums) fence_accumulators(half);
  of_rows.end();
  if (steps > 0) release(previous);
}

// The same for the operands' layout: one mainloop for each.
template <typename T, typename Shape, typename OnIssued, typename OfRows>
DIGLOT_DEVICE void multiply_stages(float (&sums)[Shape::kHalves][Shape::kSums],
                                   Ring<Shape::kStages>& ring, const RingPlaces<Shape>& at,
                                   int first_row, Major order_a, Major order_b, int steps,
                                   const Release<Shape>& release, const OnIssued& on_issued,
                                   OfRows& of_rows) {
  const auto multiply = [&](auto major_a, auto major_b) {
    multiply_stages<T, Shape, decltype(major_a)::value, decltype(major_b)::value>(
        sums, ring, at, first_row, steps, release, on_issued, of_rows);
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
DIGLOT_DEVICE void consume_stages(typename Shape::Shared& shared, const RingPlaces<Shape>& at,
                                  const TensorMap& map_c, const TensorMap& map_before,
                                  const Epilogue<Out>& epilogue, char* scratch,
                                  const WgmmaProduct& product, Out* sums_of_rows = nullptr) {
  // Sums of 16-bit types leave registers for a bias, where little else follows them.
  constexpr bool kKeepsBias =
      sizeof(T) == 2 && (Shape::kIsPlain || Shape::kIsActivated) && !Shape::kHasRowSums;
  const int consumer = consumer_number();
  const Sharing sharing = sharing_of<Shape>(product);
  const Release<Shape> release(at, sharing);
  const int tile_row = Shape::kTakesTurns ? 0 : consumer * Shape::kConsumerRows;
  Ring<Shape::kStages> ring;
  TmaParts<Shape> stored{shared.c[consumer], 1 + consumer};
  const uint32_t clusters = sharing.clusters();
  const uint32_t turn = Shape::kTakesTurns ? static_cast<uint32_t>(consumer) : 0;
  const Turns<Shape> turns{consumer};
  const bool meets =
      most_meeting(Shape::kRows, Shape::kColumns, Shape::kIsExchanged) > 1 && product.meets;
  uint64_t ones = 0;
  if constexpr (Shape::kHasRowSums) {
    ones = RowSums<T, kMmaType<T>>::make_ones(shared.ones[consumer], stored.barrier);
  }
  turns.begin();
  if (turn > 0) ring.advance(product.schedule.steps);
  const BlockParts parts(product.schedule, sharing.cluster() + turn * clusters,
                         clusters * (Shape::kTakesTurns ? 2 : 1));
  for (uint32_t number = parts.first; number < parts.limit; number = parts.after(number)) {
    const TilePart part = parts.part(number);
    if (part.first == part.end) continue;  // a helper's item without steps
    const Tile tile = sharing.own(part.tile);
    const int row = tile.row * Shape::kRows + tile_row, column = tile.column * Shape::kColumns;
    TileBias<Out, Shape> bias;
    // Where parts meet, registers are for their sums, and the bias comes later.
    if (kKeepsBias && !meets) bias.load(epilogue, row, column);
    float sums[Shape::kHalves][Shape::kSums];
    turns.await();
    const auto multiply = [&](auto& of_rows) {
      multiply_stages<T, Shape>(
          sums, ring, at, tile_row, product.major_a, product.major_b, part.end - part.first,
          release,
          [&] {
            if (number + clusters < parts.count) turns.pass();
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
      const ClusterParts<Shape> in_cluster{shared, consumer, stored.barrier, part.part,
                                           product.schedule.parts};
      if (meets) {
        in_cluster.add(sums[0]);
        if constexpr (kKeepsBias) bias.load(epilogue, row, column);
      } else if (!product.schedule.is_whole(part)) {
        const bool is_last = of_rows.with(sums[0], [&](auto& all) {
          return add_parts<Shape::kConsumers>(all, scratch, product.schedule, part, consumer,
                                              stored.barrier);
        });
        if (!is_last) continue;
      }
      if constexpr (Shape::kHasRowSums) {
        if (column == 0) of_rows.store(sums_of_rows, row, static_cast<int>(epilogue.m));
      }
      finish(sums[0], 0, [&](int first) { return !meets || in_cluster.has(first); });
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

  // Whole warps arrive.
  DIGLOT_DEVICE void arrive() const {
    if (blocks == 1) return;
    __syncwarp();
    cluster_arrive_relaxed();
  }
  DIGLOT_DEVICE void wait() const {
    if (blocks > 1) cluster_wait();
  }
};

// Shares a block's warpgroups out: produce(shared, at) by one thread, and consume(shared, at) by
// the consumers. Of several producers, one thread of each calls produce(shared, at, number), and
// arrives at each stage's barrier. The blocks of a cluster wait for each other's barriers. Both
// functions see to it that none ends while others reach its memory. The first producer waits for
// nobody else before its first loads.
template <typename Shape, int kProducers = 1, typename Produce, typename Consume>
DIGLOT_DEVICE void share_out(const Produce& produce, const Consume& consume, Cluster cluster = {}) {
  constexpr int kReady = 15, kProducing = 14, kWarp = 32;  // the barriers' numbers
  constexpr int kConsuming = Shape::kConsumers * kWarpgroupThreads;
  constexpr int kThreads = kWarp + kConsuming;
  const int thread = static_cast<int>(threadIdx.x);
  const int producer = (thread - kConsuming) / kWarp;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  const auto at = RingPlaces<Shape>::of(shared);
  if (thread >= kConsuming) {
    if (thread < kThreads) {
      if (thread == kConsuming) {
        for (Mbarrier& barrier : shared.barriers.full) barrier.init(kProducers);
        // One thread of each consumer.
        for (Mbarrier& barrier : shared.barriers.empty)
          barrier.init(Shape::kReaders * cluster.receivers);
        for (Meeting& meeting : shared.barriers.meetings) meeting.init(cluster.blocks);
        fence_mbarrier_init();
      }
      __syncwarp();
      if (kProducers > 1) named_barrier_arrive(kProducing, kProducers * kWarp);
      named_barrier_arrive(kReady, kThreads);
    } else if (producer < kProducers) {
      named_barrier_sync(kProducing, kProducers * kWarp);
    }
    cluster.arrive();
    if (cluster.shares) cluster.wait();
    if constexpr (Shape::kMovesRegisters) release_registers<Shape::kProducerRegisters>();
    // By elect, so that the compiler knows that there is one thread. Its values are then uniform,
    // as TMA takes them. A loop over threads would take longer than a small stage's loads.
    if (producer < kProducers && elect_one()) {
      if constexpr (kProducers == 1) {
        produce(shared, at);
      } else {
        produce(shared, at, producer);
      }
    }
    __syncwarp();
    if (!cluster.shares) cluster.wait();
  } else {
    cluster.arrive();
    if (cluster.shares) cluster.wait();
    if constexpr (Shape::kMovesRegisters) take_registers<Shape::kConsumerRegisters>();
    named_barrier_sync(kReady, kThreads);
    consume(shared, at);
  }
}

template <typename Shape>
DIGLOT_DEVICE void prefetch_maps(const TensorMap& a, const TensorMap& b, const TensorMap& map_c,
                                 const WgmmaProduct& product) {
  // A thread with nothing else to do: of the producer's warpgroup, or of a consumer that waits.
  if (threadIdx.x == (Shape::kMovesRegisters ? Shape::kThreads - 1 : 0)) {
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
  share_out<Shape, 2>(
      [&](auto&, const auto& at, int producer) {
        producer == 0 ? produce_stages<Shape, true, false>(at, a, b, product)
                      : produce_stages<Shape, false, true>(at, a, b, product);
      },
      [&](auto& shared, const auto& at) {
        consume_stages<T, Shape>(shared, at, map_c, map_before, epilogue, scratch, product);
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
  share_out<Shape>([&](auto&, const auto& at) { produce_stages<Shape>(at, a, b, product); },
                   [&](auto& shared, const auto& at) {
                     consume_stages<T, Shape>(shared, at, map_c, map_c, epilogue, scratch, product,
                                              sums_of_rows);
                   });
}

}  // namespace diglot
