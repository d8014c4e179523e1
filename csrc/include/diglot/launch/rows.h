// Host side of a kernel that reduces rows and then maps them: how rows lie in the arrays, which
// variant runs, and its grid. Twin of triton_ops/launch/rows.py.
#pragma once

#include "diglot/launch/row_shapes.h"

namespace diglot {

// Upper bound of the shared memory that a block uses for other purposes and that the driver
// reserves.
constexpr int kRowOtherBytes = 2 * 1024;
constexpr int kColumnsBytes = 24 * 1024;  // for columns_reduce

template <int kArrays>
Numbers order_of(const Rows<kArrays>& rows) {
  return {{"side", 1 << rows.log_side},
          {"blocks", rows.blocks},
          {"part", rows.part},
          {"tiles", rows.tiles},
          {"chunks", rows.chunks}};
}

// Rows along one dimension of kArrays arrays of one shape, the output first. The arrays that follow
// the inputs have size 1 along it.
template <int kArrays>
struct RowLayout {
  int64_t n = 1;
  int64_t steps[kArrays] = {};
  Layout<kArrays> outer;

  RowLayout(const Operand* const (&operands)[kArrays], int dim)
      : outer(without(operands, dim, *this)) {}

  // Whether rows consist of 16-byte accesses, with `elements` elements of the input's type each.
  bool is_wide(int elements, int arrays) const {
    if (n % elements != 0) return false;
    for (int a = 0; a < arrays; ++a) {
      if (steps[a] != 1 || !outer.has_multiples(a, elements, 0)) return false;
    }
    return true;
  }
  // Whether rows consist of such accesses except at their ends. The same elements of a row must
  // then share an access in all arrays.
  bool is_peeled(const Operand* const (&operands)[kArrays], int elements, int arrays) const {
    for (int a = 0; a < arrays; ++a) {
      if (steps[a] != 1 || operands[a]->dtype != operands[0]->dtype ||
          operands[a]->remainder != operands[0]->remainder ||
          !operands[a]->is_aligned(size_of(operands[a]->dtype))) {
        return false;
      }
      for (int d = 0; d < outer.rank; ++d) {
        if ((outer.strides[d][a] - outer.strides[d][0]) % elements != 0) return false;
      }
    }
    return true;
  }
  // Whether columns side by side consist of such accesses.
  bool has_wide_columns(int elements, int arrays) const {
    for (int a = 0; a < arrays; ++a) {
      if (!outer.has_vectors(a, elements) || steps[a] % elements != 0) return false;
    }
    return true;
  }
  // Whether a step along the dimension is longer than a step along the fastest other one.
  bool is_columns() const { return outer.rank > 0 && n > 1 && outer.strides[0][0] < steps[0]; }

 private:
  struct Views {
    Operand operands[kArrays];
    const Operand* pointers[kArrays];
  };
  static Layout<kArrays> without(const Operand* const (&operands)[kArrays], int dim,
                                 RowLayout& row) {
    Views views;
    for (int a = 0; a < kArrays; ++a) {
      Operand& view = views.operands[a] = *operands[a];
      views.pointers[a] = &view;
      if (view.rank == 0) continue;
      const int64_t size = view.sizes[dim];
      if (a == 0) row.n = size;
      row.steps[a] = size == 1 ? (row.n == 1) : view.strides[dim];
      --view.rank;
      for (int d = dim; d < view.rank; ++d) {
        view.sizes[d] = view.sizes[d + 1];
        view.strides[d] = view.strides[d + 1];
      }
    }
    return Layout<kArrays>(views.pointers);
  }
};

struct VariantNames {
  const char* in_lanes;
  const char* in_registers;
  const char* in_shared;
  const char* in_cluster;
  const char* two_pass;
};
template <bool kIsColumns, Width kWidth>
constexpr VariantNames kVariantNames =
    kIsColumns ? (kWidth == Width::kWide
                      ? VariantNames{"", "columns in registers, 16-byte accesses",
                                     "columns in shared memory, 16-byte accesses",
                                     "columns across a cluster, 16-byte accesses",
                                     "columns read twice, 16-byte accesses"}
                      : VariantNames{"", "columns in registers", "columns in shared memory",
                                     "columns across a cluster", "columns read twice"})
    : kWidth == Width::kWide
        ? VariantNames{"rows in lanes, 16-byte accesses", "a row in registers, 16-byte accesses",
                       "a row in shared memory, 16-byte accesses",
                       "a row across a cluster, 16-byte accesses",
                       "a row read twice, 16-byte accesses"}
    : kWidth == Width::kPeeled
        ? VariantNames{"rows in lanes, peeled accesses", "a row in registers, peeled accesses",
                       "a row in shared memory, peeled accesses",
                       "a row across a cluster, peeled accesses",
                       "a row read twice, peeled accesses"}
        : (VariantNames{"rows in lanes", "a row in registers", "a row in shared memory",
                        "a row across a cluster", "a row read twice"});

inline int log2_ceiling(int64_t n) {
  int result = 0;
  while ((int64_t{1} << result) < n) ++result;
  return result;
}

// Finds the addresses of inputs of type I at a launch.
template <typename I, typename... Operands>
auto inputs_of(const Operands&... operands) {
  return [all = std::make_tuple(operands.template as<const I>()...)](const Arguments& now) {
    return std::apply(
        [&](const auto&... each) {
          return Inputs<I, static_cast<int>(sizeof...(Operands))>{{each(now)...}};
        },
        all);
  };
}

// Shares a row of `accesses` accesses out evenly: to blocks with at most `most_threads` threads
// while the cluster is below `most_blocks`, then to as few threads as hold it. A thread has `each`
// accesses, unless a block lacks the threads, or more if all blocks of `count` rows then run at
// once. Returns the threads of a block.
template <typename Shape, int kArrays>
int share_accesses(Rows<kArrays>& rows, int64_t accesses, int along, int most_blocks,
                   int64_t most_threads, int64_t each, int64_t count, int multiprocessors) {
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  int64_t blocks = quotient(accesses, Shape::kThreads * Shape::kAccesses);
  if (Shape::kTeam == Team::kCluster) {
    const int64_t wanted = quotient(accesses, most_threads * Shape::kAccesses);
    blocks = std::max(blocks, std::min<int64_t>(wanted, most_blocks));
  }
  const int64_t in_block = quotient(accesses, blocks);
  rows.blocks = static_cast<int>(quotient(accesses, in_block));
  rows.part = static_cast<int>(in_block) * along;
  for (;; ++each) {
    const int64_t threads =
        std::min<int64_t>(quotient(in_block, each * kWarpLanes) * kWarpLanes, Shape::kThreads);
    const int64_t resident = Shape::kThreads * Shape::kBlocks / threads * multiprocessors;
    if (each >= Shape::kAccesses || count * rows.blocks <= resident) {
      return static_cast<int>(threads);
    }
  }
}

// Sets how a shape shares out rows, and returns the launch. Clusters have at most `most_blocks`
// blocks, and blocks at most `most_threads` threads, where the shape has a choice. It shares out as
// for `planned` rows.
template <typename Shape, typename I, int kInputs, int kArrays>
Launch share_out(Planner& planner, Rows<kArrays>& rows, int most_blocks,
                 [[maybe_unused]] int64_t most_threads, [[maybe_unused]] int64_t each,
                 [[maybe_unused]] int64_t planned) {
  constexpr int kAlong = Shape::template kAlong<I>;
  constexpr bool kIsColumns = Shape::kTeam == Team::kColumns;
  constexpr const VariantNames& kNames = kVariantNames<kIsColumns, Shape::kWidth>;
  [[maybe_unused]] constexpr int kThreadBytes = Shape::template kThreadBytes<I, kInputs>;
  // Accesses of a row, wherever it begins.
  const int64_t accesses = (rows.n + Shape::template kMostSkipped<I> + kAlong - 1) / kAlong;
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  Launch how{{}, Shape::kThreads};
  how.skip_if_no_room = true;
  rows.log_side = 0, rows.blocks = 1, rows.part = 0, rows.tiles = 1, rows.slots = 0;
  if constexpr (Shape::kTeam == Team::kLanes) {
    constexpr bool kIsWarp = Shape::kWidth == Width::kDense;
    rows.log_side = kIsWarp ? kLogWarp : log2_ceiling(quotient(accesses, Shape::kAccesses));
    how.grid = blocks_for(rows.count, Shape::kThreads >> rows.log_side);
    planner.plan.variant = kNames.in_lanes;
    return how;
  }
  if (kIsColumns) {
    // Wide enough for memory, else as wide as lets the rows fit, and no wider than there are
    // columns.
    const int64_t least =
        planner.tuned(Shape::kIsWide ? Tunable::kRowsVectorsAside : Tunable::kRowsElementsAside);
    const int64_t widest = int64_t{Shape::kThreads} * Shape::kAccesses / rows.n;
    rows.log_side = std::min(log2_ceiling(std::clamp<int64_t>(widest + 1, least + 1, 512)) - 1,
                             log2_ceiling(rows.count));
    rows.log_side = std::min(rows.log_side, log2_ceiling(Shape::kThreads));
  }
  const int64_t size = int64_t{Shape::kThreads >> rows.log_side} * Shape::kAccesses;
  const int64_t tiles = quotient(accesses, size);
  if constexpr (!Shape::kIsTiled) {
    const int threads = share_accesses<Shape>(rows, accesses, kAlong, most_blocks, most_threads,
                                              each, planned, planner.device.multiprocessors());
    how.block = static_cast<unsigned>(threads);
    how.grid = static_cast<unsigned>(rows.count * rows.blocks);
    how.cluster_blocks = static_cast<unsigned>(rows.blocks);
    planner.plan.variant = rows.blocks > 1 ? kNames.in_cluster : kNames.in_registers;
    return how;
  }
  const int tile_bytes = Shape::kThreads * kThreadBytes;
  int room = 0;
  if (tiles > 1) {
    room = planner.device.shared_bytes() - kRowOtherBytes - (kIsColumns ? kColumnsBytes : 0);
    const int64_t few_slots = planner.tuned(Tunable::kRowsFewSlots);
    while (rows.blocks < most_blocks && rows.blocks * (1 + few_slots) < tiles) rows.blocks *= 2;
  }
  rows.tiles = static_cast<int>(quotient(tiles, rows.blocks));
  rows.slots = std::min(room / tile_bytes, rows.tiles - 1);
  how.grid = static_cast<unsigned>(quotient(rows.count, int64_t{1} << rows.log_side) * rows.blocks);
  how.cluster_blocks = static_cast<unsigned>(rows.blocks);
  how.shared_bytes = static_cast<std::size_t>(rows.slots) * tile_bytes;
  planner.plan.variant = rows.slots < rows.tiles - 1 ? kNames.two_pass
                         : rows.blocks > 1           ? kNames.in_cluster
                         : rows.slots > 0            ? kNames.in_shared
                                                     : kNames.in_registers;
  return how;
}

// How one of two launches shares out columns: `Shape` is that of the launch.
template <typename Shape, typename I, int kArrays>
Launch share_chunks(Rows<kArrays>& rows, int64_t chunk) {
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  rows.blocks = 1, rows.part = 0, rows.slots = 0;
  rows.tiles = static_cast<int>(chunk / ((Shape::kThreads >> rows.log_side) * Shape::kAccesses));
  rows.chunks = static_cast<int>(quotient(rows.n, chunk));
  return {static_cast<unsigned>(quotient(rows.count, int64_t{1} << rows.log_side) * rows.chunks),
          Shape::kThreads};
}

template <typename Shapes, typename I, int kArrays, typename Function>
void launch_chunks(Planner& planner, Rows<kArrays>& rows, std::size_t state_bytes,
                   Function function) {
  using Reduce = typename Shapes::Reduce;
  using Map = typename Shapes::Map;
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  constexpr int kElements = Reduce::template kElements<I>;
  const int64_t strip_bytes = planner.tuned(Tunable::kRowsStripBytes);
  const int64_t aside = std::max<int64_t>(strip_bytes / (kElements * sizeof(I)), 1);
  rows.log_side =
      std::min(log2_ceiling(std::min<int64_t>(aside, Reduce::kThreads)), log2_ceiling(rows.count));
  const int64_t strips = quotient(rows.count, int64_t{1} << rows.log_side);
  const int64_t wanted = std::max(planner.tuned(Tunable::kRowsChunkBlocks) / strips,
                                  planner.tuned(Tunable::kRowsManyChunks));
  const int64_t most = rows.n / planner.tuned(Tunable::kRowsChunkElements);
  const int64_t chunks = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1));
  // Whole tiles of both launches. Their sizes are powers of two.
  const int64_t tile =
      int64_t{Reduce::kThreads >> rows.log_side} * std::max(Reduce::kAccesses, Map::kAccesses);
  const int64_t chunk = quotient(quotient(rows.n, chunks), tile) * tile;
  Launch how = share_chunks<Reduce, I>(rows, chunk);
  const auto needed = rows.chunks * rows.count * kElements * state_bytes;
  const auto states = planner.need({static_cast<int64_t>(needed)});
  planner.plan.variant =
      Reduce::kIsWide ? "columns in two launches, 16-byte accesses" : "columns in two launches";
  function(Reduce{}, rows, how, states);
  how = share_chunks<Map, I>(rows, chunk);
  how.uses_pdl = true;
  function(Map{}, rows, how, states);
}

// Whether a shape holds a row of n elements. The last shape of a list need not.
template <typename Shape, typename I>
bool holds(int64_t n) {
  const int threads = Shape::kTeam == Team::kLanes ? kWarpLanes : Shape::kThreads;
  const int64_t tile = int64_t{threads} * Shape::kAccesses * Shape::template kAlong<I>;
  const int blocks = Shape::kTeam == Team::kCluster ? kMostClusterBlocks : 1;
  return n <= blocks * tile - Shape::template kMostSkipped<I>;
}

// Plans function(shape, rows, how, states) for each slice of the arrays of `layout`. `outer` has
// the other dimensions. It takes the first shape that holds a row and whose function returns true,
// or else the last. Of the shapes that hold a row, a tunable may skip some.
template <typename Shapes, typename I, int kInputs, int kArrays, typename Function,
          typename... Each>
void run_rows(Planner& planner, const RowLayout<kArrays>& layout, const Layout<kArrays>& outer,
              ShapeList<Each...>, Function function, std::size_t state_bytes) {
  for (const auto& [count, starts] : outer.template slices<int64_t>()) {
    Rows<kArrays> rows;
    rows.n = layout.n, rows.count = count, rows.starts = starts;
    std::copy_n(layout.steps, kArrays, rows.steps);
    const int64_t planned = planned_rows(planner, count);
    int later_shapes = sizeof...(Each);
    int64_t skipped = 0;
    const auto attempt = [&](auto shape) {
      using Shape = decltype(shape);
      --later_shapes;
      if constexpr (kIsChunked<Shape>) {
        if (rows.n <= planner.tuned(Shape::kTallest, kInputs)) return false;
        launch_chunks<Shape, I>(planner, rows, state_bytes, function);
        return true;
      } else {
        if (later_shapes > 0) {
          if (!holds<Shape, I>(rows.n) ||
              !Shapes::template takes<Shape>(planner, rows.n, planned)) {
            return false;
          }
          if (skipped++ < planner.tuned(Shapes::kSkipped)) return false;
        }
        // A device may have no room for the largest clusters, or for any.
        for (int most : {kMostClusterBlocks, kPortableClusterBlocks, 1}) {
          const int64_t most_threads =
              Shape::kTeam == Team::kCluster ? Shapes::most_threads(planner, rows.n) : 0;
          const int64_t each = std::min<int64_t>(Shapes::most_accesses(planned), Shape::kAccesses);
          const Launch how =
              share_out<Shape, I, kInputs>(planner, rows, most, most_threads, each, planned);
          if (function(shape, rows, how, Address<char>())) return true;
          if (how.cluster_blocks > static_cast<unsigned>(most)) return false;
        }
        return false;
      }
    };
    static_cast<void>((attempt(Each{}) || ...));
  }
}

// Plans function(shape, rows, how, states), once for each launch and each slice of the dimensions.
// The first array is the output, of type O. The next kInputs are the inputs, of type I; more arrays
// may follow them. `is_aligned`: other accesses to rows, such as parameters, are at multiples of 16
// bytes. `is_like_output`: other stored rows, such as a fused norm's sum, lie as the output does.
template <typename I, typename O, int kInputs, typename Shapes = RowShapes<I, O, kInputs>,
          int kArrays, typename Function>
void launch_rows(Planner& planner, const Operand* const (&operands)[kArrays], int64_t dim,
                 Function function, bool is_aligned = true, std::size_t state_bytes = 0,
                 bool is_like_output = true) {
  if (operands[0]->numel == 0) return;
  if (dim < 0 || dim >= std::max(operands[0]->rank, 1)) {
    throw std::invalid_argument("there is no dimension " + std::to_string(dim));
  }
  constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(I));
  constexpr int kCut = kInputs + 1;  // output and inputs, which have whole rows
  const RowLayout<kArrays> layout(operands, static_cast<int>(dim));
  for (int a = 0; a < kCut; ++a) {
    const int bytes = std::min(kAccessBytes, kElements * size_of(operands[a]->dtype));
    is_aligned &= operands[a]->is_aligned(bytes);
  }
  const auto run = [&](const char* name, const Layout<kArrays>& outer, auto shapes) {
    planner.choose(name, {operands[0]->numel / layout.n, layout.n}, {operands, operands + kCut});
    run_rows<Shapes, I, kInputs>(planner, layout, outer, shapes, function, state_bytes);
  };
  if (!Shapes::kHasColumns || !layout.is_columns()) {
    if (is_aligned && layout.is_wide(kElements, kCut)) {
      run("rows, 16-byte accesses", layout.outer, typename Shapes::Wide{});
    } else if (is_like_output && layout.is_peeled(operands, kElements, kCut)) {
      run("rows, 16-byte accesses, edges apart", layout.outer, typename Shapes::Peeled{});
    } else {
      run("rows", layout.outer, typename Shapes::Narrow{});
    }
  } else if constexpr (Shapes::kHasColumns) {
    if (is_aligned && layout.has_wide_columns(kElements, kCut)) {
      run("columns, 16-byte accesses", layout.outer.in_vectors(kElements),
          typename Shapes::WideColumns{});
    } else {
      run("columns", layout.outer, typename Shapes::NarrowColumns{});
    }
  }
}

}  // namespace diglot
