// How rows are shared out: their layout, the shape of a kernel variant, and a thread's place.
#pragma once

#include "diglot/strides.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// kArrays arrays of rows, the output first, and how blocks and threads share out the rows.
template <int kArrays>
struct Rows {
  int64_t n;               // elements of a row
  int64_t count;           // rows; for columns: accesses side by side
  int64_t steps[kArrays];  // from an element of a row to the next
  int log_side;    // log2 of the lanes that hold a row, or of a block's accesses across columns
  int blocks;      // of a cluster that share a row
  int part;        // elements of the row for each of them, at most
  int tiles;       // of a row, for each block that shares it; for split columns, of a chunk
  int slots;       // tiles that fit in shared memory
  int chunks = 1;  // of split columns
  Strides<kArrays, int64_t> starts;  // of rows; last, as most of it is for many dimensions
};

// The threads that share a row: lanes of a warp; a block; or the blocks of a cluster, one tile
// each. For columns: the threads of a block that lie below each other.
enum class Team { kLanes, kBlock, kCluster, kColumns };

// How a kernel goes through rows.
enum class Walk {
  kResident,  // a team holds a row in registers (resident.cuh)
  kTiled,     // a row has several tiles: in registers, in shared memory, or read twice (tiled.cuh)
  kReduceChunks,  // split columns, first launch: reduces chunks (split_columns.cuh)
  kMapChunks,     // split columns, second launch: combines the chunks' states and maps
};

// How a thread accesses an array.
enum class Width {
  kNarrow,  // element by element
  kPeeled,  // by 16 bytes, except a row's ends, by elements: rows begin and end anywhere
  kWide,    // by 16 bytes
  kDense,   // as kNarrow, of neighbours of 2 or 4 bytes, a row to a warp: distances are constants
};

// The compile-time shape of a row kernel. Each thread keeps kAccesses vectors of a row in
// registers, accessed by 16 bytes if kIsWide, else by elements; the vectors of all threads are one
// tile. A block has at most kThreads threads. kBlocks is the minimum number of such blocks per SM
// (__launch_bounds__), which caps registers so that blocks hide each other's latency.
template <Team kTeam_, Width kWidth_, int kThreads_, int kAccesses_, Walk kWalk_, int kBlocks_ = 1>
struct RowShape {
  static constexpr Team kTeam = kTeam_;
  static constexpr Width kWidth = kWidth_;
  static constexpr bool kIsWide = kWidth == Width::kWide || kWidth == Width::kPeeled;
  static constexpr bool kIsPeeled = kWidth == Width::kPeeled;
  static constexpr int kThreads = kThreads_;
  static constexpr int kAccesses = kAccesses_;
  static constexpr Walk kWalk = kWalk_;
  static constexpr bool kIsTiled = kWalk == Walk::kTiled;
  static constexpr bool kIsChunked = kWalk == Walk::kReduceChunks || kWalk == Walk::kMapChunks;
  static constexpr int kBlocks = kBlocks_;
  // Elements of an access, and how many of them belong to one row.
  template <typename T>
  static constexpr int kElements =
      kTeam == Team::kColumns && !kIsWide ? 1 : kAccessBytes / static_cast<int>(sizeof(T));
  template <typename T>
  static constexpr int kAlong = kTeam == Team::kColumns ? 1 : kElements<T>;
  // How many rows a thread has elements of.
  template <typename T>
  static constexpr int kRows = kElements<T> / kAlong<T>;
  // Bytes of shared memory for a thread's part of a tile of kInputs arrays.
  template <typename T, int kInputs>
  static constexpr int kThreadBytes =
      kInputs * kAccesses * static_cast<int>(sizeof(Held<T, kElements<T>>));
  // How many elements a row's first access may reach back before the row.
  template <typename T>
  static constexpr int kMostSkipped = kIsPeeled ? kElements<T> - 1 : 0;
};

constexpr int kLogWarp = 5;  // log2 of the lanes of a warp

// A thread's place. `row` is its row; for columns the first one, counted in accesses. `threads`
// threads of the block share the row, and `thread` is this one's number among them. `block` is its
// block's rank in the row.
template <typename Shape>
struct RowPlace {
  int64_t row;
  int threads;
  int thread;
  int block;

  template <int kArrays>
  DIGLOT_DEVICE explicit RowPlace(const Rows<kArrays>& rows)
      : RowPlace(rows, blockIdx.x / blocks_of(rows)) {}
  // `group`: the number of the block, or of the group of blocks that share a row.
  template <int kArrays>
  DIGLOT_DEVICE RowPlace(const Rows<kArrays>& rows, int64_t group) {
    const int self = static_cast<int>(threadIdx.x);
    const int log_side = Shape::kWidth == Width::kDense ? kLogWarp : rows.log_side;
    const int side = 1 << log_side;
    if constexpr (Shape::kTeam == Team::kLanes) {
      row = (group * Shape::kThreads + self) >> log_side;
      threads = side, thread = self & (side - 1), block = 0;
    } else {
      block = static_cast<int>(blockIdx.x % blocks_of(rows));
      if constexpr (Shape::kTeam == Team::kColumns) {
        row = (group << rows.log_side) + (self & (side - 1));
        threads = Shape::kThreads >> rows.log_side, thread = self >> rows.log_side;
      } else {
        row = group;
        threads = Shape::kIsTiled ? Shape::kThreads : static_cast<int>(blockDim.x), thread = self;
      }
    }
  }

  template <int kArrays>
  DIGLOT_DEVICE static unsigned blocks_of(const Rows<kArrays>& rows) {
    constexpr bool kHasOthers = Shape::kTeam == Team::kCluster || Shape::kIsTiled;
    return kHasOthers ? static_cast<unsigned>(rows.blocks) : 1;
  }
};

}  // namespace diglot
