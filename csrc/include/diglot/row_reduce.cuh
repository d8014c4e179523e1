// Rows of arrays, each reduced to one state and then mapped by it: softmax, norms and their kin,
// forward and backward. Twin of triton_ops/lib/row_reduce.py.
//
// An operation says how a thread's elements of a row are reduced, and what function the state of
// the whole row makes of every element:
//
//   struct Operation {
//     using State = ...;  // with none() and combine() of reduce.cuh
//     // Elements that are not there are visited as this, if that changes no state: a branch for
//     // each access would cost as much as they do. Otherwise they are not visited.
//     static constexpr bool kVisitsAbsent = ...;
//     static constexpr float kAbsent = ...;
//     // What it is for one row, with its offsets in arrays that follow the inputs, of one element
//     // for a row; of all threads of the row, one leads.
//     Operation of_row(const int64_t* offsets, bool leads) const;
//     // visit(function) calls function with each of the thread's `count` elements, one argument
//     // per input, always in the same order.
//     template <typename Visit> State reduce(Visit visit, int count) const;
//     auto map(const State& total) const;  // -> function(x...)
//
//     // It may have two inputs, of whose elements it holds what they make together, and has it
//     // stored, where the output's elements are.
//     static I join(I x, I y);
//     I* joined;
//
//     // Where registers hold a row it may be faster in another way. A block, or lanes, may find
//     // the state of the `count` elements they have of it together: sum(x) adds up what each of
//     // the threads has.
//     static constexpr bool kReducesTogether = true;
//     template <typename Visit, typename Sum>
//     State reduce_together(Visit visit, int64_t count, Sum sum) const;
//     // Or replace(function), called once, visits elements and has function(x) take the place of
//     // each x, for a map that knows this thread's own state, too.
//     template <typename Visit, typename Replace>
//     State reduce_replacing(Visit visit, Replace replace) const;
//     auto map_replaced(const State& own, const State& total) const;  // -> function(x)
//
//     // Of two inputs it may reduce the first alone: where all are read again for the map, the
//     // second is not read before. visit's function is called with that one, or with both.
//     static constexpr bool kReducesFirst = true;
//
//     // What maps read may be brought nearer, see below: so many bytes for each element.
//     using Brought = ...;
//     static constexpr int kBroughtBytes = ...;
//     template <typename Bring> Brought bring(Bring bring) const;
//   };
//
// A map that has something of its own for each element of a row is none of elements alone:
// map.at<kCount>(first) gives function(i, x...) for the elements first + i, i < kCount. If its
// operation has bring(bring), which returns Brought, the arrays that it reads may be brought to
// shared memory while a row is on its way: bring(array) is where, and map.near(brought) reads
// there, from the first element on that the block has.
//
// A row is read once, and held by the threads that have it: in registers, if need be of a cluster
// of blocks, and, beyond what these hold, in shared memory, to which it is copied past the
// registers, so that a long row is in flight all at once. What no block of a cluster can hold is
// read again, the rest not.
//
// Of tall columns a block, or cluster, would have a narrow strip, of pieces of memory that are far
// apart: half as fast as whole lines side by side, however little is read again. They take two
// launches, both of which stream strips of 512 bytes. The first one reduces chunks of the columns;
// the second one combines the chunks' states and maps, in reverse order: what was read last is in
// the L2 cache.
//
// A row is any dimension of a strided array. Where its elements are neighbours, so are those of
// neighbouring threads; where those of neighbouring rows are, a block takes several rows side by
// side, as columns. Nothing is transposed or copied.
#pragma once

#include <type_traits>
#include <utility>

#include "diglot/cluster.cuh"
#include "diglot/next_launch.cuh"
#include "diglot/reduce.cuh"
#include "diglot/strides.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// kArrays arrays of rows, the output first, and how they are shared out.
template <int kArrays>
struct Rows {
  int64_t n;                         // elements of a row
  int64_t count;                     // rows; of columns: accesses side by side
  Strides<kArrays, int64_t> starts;  // of rows
  int64_t steps[kArrays];            // from an element of a row to the next
  int log_side;    // log2 of the threads that have a row, if lanes do; of the accesses side by side
                   // that a block has, if they are columns
  int log_blocks;  // log2 of those that have a row together, as a cluster
  int tiles;       // that each of them has of it; of a chunk
  int places;      // for tiles in shared memory
  bool brings = false;  // what the map reads to shared memory
  int chunks = 1;       // of columns that take two launches

  DIGLOT_HOST_DEVICE int blocks() const { return 1 << log_blocks; }
};

// Who has a row: lanes of a warp; a block; each block of a cluster a tile of it; or a block that
// has others beside it, as columns.
enum class Team { kLanes, kBlock, kCluster, kColumns };

// A block has one row, or as many as lanes have; or it stays, and walks from row to row, the next
// one on its way to shared memory while it computes with the one before; or a row is of several
// tiles, perhaps for each block of a cluster; or a block has a chunk of columns, which one launch
// reduces and the next one maps.
enum class Walk { kOnce, kOn, kTiles, kReduce, kMap };

// A kernel variant: of a row, a thread holds so many accesses in registers: a tile. They have 16
// bytes where kIsWide; otherwise a row is accessed element by element, neighbours by neighbouring
// threads. kBlocks must fit on a multiprocessor, so that while some wait for their rows others
// compute: the compiler uses no more registers than they have.
template <Team kTeam_, bool kIsWide_, int kThreads_, int kAccesses_, Walk kWalk_, int kBlocks_ = 1>
struct RowShape {
  static constexpr Team kTeam = kTeam_;
  static constexpr bool kIsWide = kIsWide_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kAccesses = kAccesses_;
  static constexpr Walk kWalk = kWalk_;
  static constexpr bool kIsTiled = kWalk == Walk::kTiles;
  static constexpr bool kIsChunked = kWalk == Walk::kReduce || kWalk == Walk::kMap;
  static constexpr int kBlocks = kBlocks_;
  // Of an access, and of those the ones in a row.
  template <typename T>
  static constexpr int kElements =
      kTeam == Team::kColumns && !kIsWide ? 1 : kAccessBytes / static_cast<int>(sizeof(T));
  template <typename T>
  static constexpr int kAlong = kTeam == Team::kColumns ? 1 : kElements<T>;
  // Rows that a thread has a part of.
  template <typename T>
  static constexpr int kRows = kElements<T> / kAlong<T>;
  // What a tile of so many arrays takes in shared memory.
  template <typename T, int kInputs>
  static constexpr int kTileBytes =
      kInputs * kAccesses * kThreads * static_cast<int>(sizeof(Held<T, kElements<T>>));
};

// Something of each of a thread's rows.
template <typename T, int kRows>
struct RowsOf {
  T of[kRows];
};

template <typename State, int kRows>
DIGLOT_DEVICE RowsOf<State, kRows> combine(RowsOf<State, kRows> a, const RowsOf<State, kRows>& b) {
  DIGLOT_UNROLL
  for (int row = 0; row < kRows; ++row) a.of[row] = combine(a.of[row], b.of[row]);
  return a;
}

// Whether an operation makes one array of its inputs, and whether a map is of elements' places.
template <typename Operation, typename = void>
constexpr bool kJoins = false;
template <typename Operation>
constexpr bool kJoins<Operation, std::void_t<decltype(&Operation::join)>> = true;
template <typename Map, typename = void>
constexpr bool kIsOfPlaces = false;
template <typename Map>
constexpr bool
    kIsOfPlaces<Map, std::void_t<decltype(std::declval<const Map&>().template at<1>(0))>> = true;
// Whether it reduces together, replaces elements, brings something.
template <typename Operation, typename = void>
constexpr bool kReducesTogether = false;
template <typename Operation>
constexpr bool kReducesTogether<Operation, std::void_t<decltype(Operation::kReducesTogether)>> =
    Operation::kReducesTogether;
template <typename Operation, typename = void>
constexpr bool kReplaces = false;
template <typename Operation>
constexpr bool kReplaces<Operation, std::void_t<decltype(&Operation::map_replaced)>> = true;
// The inputs that it reduces, of so many.
template <typename Operation, int kInputs, typename = void>
constexpr int kReducedInputs = kInputs;
template <typename Operation, int kInputs>
constexpr int kReducedInputs<Operation, kInputs, std::void_t<decltype(Operation::kReducesFirst)>> =
    Operation::kReducesFirst ? 1 : kInputs;
template <typename Operation, typename = void>
constexpr bool kBrings = false;
template <typename Operation>
constexpr bool kBrings<Operation, std::void_t<typename Operation::Brought>> = true;
// Whether there may be room for what is brought by all blocks of a multiprocessor, of any device.
template <typename Shape, typename Operation, typename I>
constexpr bool may_bring() {
  if constexpr (kBrings<Operation> && Shape::kTeam == Team::kCluster) {
    constexpr int kElements = Shape::kThreads * Shape::kAccesses * Shape::template kElements<I>;
    return Operation::kBroughtBytes * kElements * Shape::kBlocks < 228 * 1024;
  } else {
    return false;
  }
}
template <typename Map, typename = void>
constexpr bool kIsNear = false;
template <typename Map>
constexpr bool kIsNear<Map, std::void_t<decltype(Map::kIsNear)>> = Map::kIsNear;

// This thread's place: its row (of columns, the first, in accesses), how many threads of a block
// have that row, and which of them it is; likewise of blocks.
template <typename Shape>
struct RowPlace {
  int64_t row;
  int threads;
  int thread;
  int block;

  template <int kArrays>
  DIGLOT_DEVICE explicit RowPlace(const Rows<kArrays>& rows)
      : RowPlace(rows, blockIdx.x >> log_blocks_of(rows)) {}
  // Of the group of blocks, or of the block, of this number.
  template <int kArrays>
  DIGLOT_DEVICE RowPlace(const Rows<kArrays>& rows, int64_t group) {
    const int own = static_cast<int>(threadIdx.x), side = 1 << rows.log_side;
    if constexpr (Shape::kTeam == Team::kLanes) {
      row = (group * Shape::kThreads + own) >> rows.log_side;
      threads = side, thread = own & (side - 1), block = 0;
    } else {
      block = static_cast<int>(blockIdx.x & ((1u << log_blocks_of(rows)) - 1));
      if constexpr (Shape::kTeam == Team::kColumns) {
        row = (group << rows.log_side) + (own & (side - 1));
        threads = Shape::kThreads >> rows.log_side, thread = own >> rows.log_side;
      } else {
        row = group;
        threads = Shape::kThreads, thread = own;
      }
    }
  }

  template <int kArrays>
  DIGLOT_DEVICE static int log_blocks_of(const Rows<kArrays>& rows) {
    return Shape::kTeam == Team::kCluster || Shape::kIsTiled ? rows.log_blocks : 0;
  }
};

// A thread's part of a row, in tiles of as many accesses as it holds in registers; the tiles of a
// row are whole but for the last.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays>
class RowTiles {
 public:
  static constexpr int kElements = Shape::template kElements<I>;
  static constexpr int kAlong = Shape::template kAlong<I>;
  static constexpr int kRows = Shape::template kRows<I>;
  static constexpr int kAccesses = Shape::kAccesses;
  static constexpr int kHeld = kJoins<Operation> ? 1 : kInputs;  // of a row's arrays
  using Access = Vector<I, kElements>;
  using HeldAccess = Held<I, kElements>;

  DIGLOT_DEVICE RowTiles(const Rows<kArrays>& rows, const RowPlace<Shape>& place,
                         const Inputs<I, kInputs>& inputs)
      : place_(place), rows_(rows) {
    go_to(place, inputs);
  }
  DIGLOT_DEVICE void go_to(const RowPlace<Shape>& place, const Inputs<I, kInputs>& inputs) {
    place_ = place;
    n_ = place.row < rows_.count ? rows_.n : 0;
    // Where there is no row, nothing is read: any address will do.
    starts_ = rows_.starts.offsets_by_loop(place.row < rows_.count ? place.row : 0);
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) inputs_[k] = inputs.of[k] + starts_.of[k + 1];
  }

  // What an operation is for each of the thread's rows.
  DIGLOT_DEVICE auto of_rows(const Operation& operation) const {
    return of_rows(operation, std::make_integer_sequence<int, kRows>{});
  }

  // The states of nothing.
  using State = typename Operation::State;
  DIGLOT_DEVICE static RowsOf<State, kRows> none() {
    RowsOf<State, kRows> states;
    DIGLOT_UNROLL
    for (int row = 0; row < kRows; ++row) states.of[row] = State::none();
    return states;
  }

  // What is at a number.
  struct Tile {
    int64_t first;  // of its elements
    int left;       // elements that are there, of all threads
  };
  DIGLOT_DEVICE Tile tile(int number) const {
    const int size = place_.threads * (kAccesses * kAlong);
    const int64_t first = int64_t{number} * size;
    const int64_t left = n_ - first;
    return {first, left < 0 ? 0 : left < size ? static_cast<int>(left) : size};
  }

  // Into registers.
  DIGLOT_DEVICE void load(const Tile& tile) {
    if constexpr (Shape::kIsChunked) {
      static_assert(!kJoins<Operation>);
      DIGLOT_UNROLL
      for (int k = 0; k < kInputs; ++k) {
        step_through(tile, inputs_[k], k + 1, [&](int a, bool is_there, const I* at) {
          held_[k][a] = is_there ? load_held(at) : absent();
        });
      }
    } else {
      hold([&](int k, int a) { return read(tile, k, a); });
    }
  }
  // To a place in shared memory, and from there, behind wait_for_copies, into registers. A thread
  // has parts of its own.
  DIGLOT_DEVICE void fetch(const Tile& tile, int place) const {
    for_each_access([&](int k, int a) {
      if constexpr (Shape::kIsWide) {
        if (is_there(tile, a, 0)) copy_async(&kept(place, k, a)->bits, address(tile, k, a, 0));
      } else {
        *kept(place, k, a) = read(tile, k, a);
      }
    });
  }
  // A tile that is loaded once registers are free: it is in flight with those that are fetched.
  DIGLOT_DEVICE void announce(const Tile& tile) const {
    for_each_access([&](int k, int a) {
      if (Shape::kIsWide && is_there(tile, a, 0)) prefetch(address(tile, k, a, 0));
    });
  }
  DIGLOT_DEVICE void take(const Tile& tile, int place) {
    hold([&](int k, int a) { return is_there(tile, a, 0) ? *kept(place, k, a) : absent(); });
  }

  // The states of the thread's rows, of what it holds in registers.
  DIGLOT_DEVICE RowsOf<State, kRows> reduce(const RowsOf<Operation, kRows>& operations,
                                            const Tile& tile) const {
    RowsOf<State, kRows> states;
    int count = 0;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      DIGLOT_UNROLL
      for (int i = 0; i < kAlong; ++i) count += is_there(tile, a, i);
    }
    DIGLOT_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const auto visit = [&](auto function) {
        DIGLOT_UNROLL
        for (int a = 0; a < kAccesses; ++a) {
          visit_access(function, tile, a, row);
        }
      };
      states.of[row] = operations.of[row].reduce(visit, count);
    }
    return states;
  }

  // Of the row's elements that the thread's block has, or its lanes: combined from what each thread
  // has, or found together.
  DIGLOT_DEVICE State combine_in_team(const State& state) const {
    if constexpr (Shape::kTeam == Team::kLanes) {
      return lanes_reduce(state, place_.threads);
    } else {
      return block_reduce<Shape::kThreads>(state);
    }
  }
  DIGLOT_DEVICE State reduce_in_team(const Operation& operation, const Tile& tile) const {
    if constexpr (kReducesTogether<Operation>) {
      return reduce_together(operation, tile);
    } else {
      return combine_in_team(reduce({{operation}}, tile).of[0]);
    }
  }
  DIGLOT_DEVICE State reduce_together(const Operation& operation, const Tile& tile) const {
    const auto visit = [&](auto function) { visit_all(function, tile); };
    if constexpr (Shape::kTeam == Team::kLanes) {
      return operation.reduce_together(visit, n_, [&](auto x) {
        return lanes_sum(Sums<decltype(x), 1>{{x}}, place_.threads).of[0];
      });
    } else {
      return operation.reduce_together(visit, tile.left, [&](auto x) {
        return block_reduce<Shape::kThreads>(Sums<decltype(x), 1>{{x}}).of[0];
      });
    }
  }

  // What an operation puts in the place of each element.
  struct Replaced {
    compute_t<I> of[kAccesses][kElements];
  };
  DIGLOT_DEVICE State reduce_replacing(const Operation& operation, const Tile& tile,
                                       Replaced& replaced) const {
    static_assert(Operation::kVisitsAbsent);
    const auto visit = [&](auto function) { visit_all(function, tile); };
    return operation.reduce_replacing(visit, [&](auto function) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const Accesses accesses = accesses_at(a);
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) replaced.of[a][i] = call(function, accesses, i);
      }
    });
  }
  template <typename Map, typename O>
  DIGLOT_DEVICE void store_replaced(const Map& map, const Replaced& replaced, const Tile& tile,
                                    O* output) const {
    O* const to = output + starts_.of[0] + offset(tile, 0);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      Vector<O, kElements> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) result[i] = convert<O>(map(replaced.of[a][i]));
      store_access(to, tile, a, result);
    }
  }

  // What the operation's maps need of each of the thread's elements of a tile, on its way to shared
  // memory, so many bytes from its start on, if there is room; and, behind wait_for_copies, the map
  // of it.
  DIGLOT_DEVICE auto bring(const Operation& operation, const Tile& tile, int at) const {
    if constexpr (may_bring<Shape, Operation, I>()) {
      using Brought = typename Operation::Brought;
      if (!rows_.brings) return Brought{};
      return operation.bring([&](auto* array) { return bring_array(array, tile, at); });
    } else {
      return Nothing{};
    }
  }
  template <typename Brought, typename O>
  DIGLOT_DEVICE void store_by(const Operation& operation, const State& total,
                              const Brought& brought, const Tile& tile, O* output) const {
    const auto map = of_row(operation, 0).map(total);
    if constexpr (!std::is_same_v<Brought, Nothing>) {
      if (rows_.brings) {
        const auto near = map.near(brought);
        return store(RowsOf<std::decay_t<decltype(near)>, 1>{{near}}, tile, output);
      }
    }
    store(RowsOf<std::decay_t<decltype(map)>, 1>{{map}}, tile, output);
  }

  // output = map(inputs...), where maps.of[row] is the map of each of the thread's rows.
  template <typename Maps, typename O>
  DIGLOT_DEVICE void store(const Maps& maps, const Tile& tile, O* output) const {
    using Map = std::decay_t<decltype(maps.of[0])>;
    constexpr bool kPlaces = kIsOfPlaces<Map>;
    constexpr int kAtOnce = Shape::kIsWide ? kElements : 1;
    const auto result_at = [&](int a) {
      const Accesses accesses = accesses_at(a);
      Vector<O, kElements> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; i += kAtOnce) {
        const auto& map = maps.of[i / kAlong];
        const auto convert_all = [&](auto function) {
          DIGLOT_UNROLL
          for (int j = 0; j < kAtOnce; ++j) result[i + j] = convert<O>(function(j));
        };
        if constexpr (kPlaces) {
          // Of the first element where there is none, so that no branch is needed.
          const int64_t place =
              (kIsNear<Map> ? 0 : tile.first) + first_element() + elements_to(a, i);
          const auto function =
              map.template at<kAtOnce>(kIsNear<Map> || is_there(tile, a, i) ? place : 0);
          convert_all([&](int j) {
            return call([&](auto... x) { return function(j, x...); }, accesses, i + j);
          });
        } else {
          convert_all([&](int j) { return call(maps.of[(i + j) / kAlong], accesses, i + j); });
        }
      }
      return result;
    };
    if constexpr (Shape::kIsChunked) {
      step_through(tile, output + starts_.of[0], 0, [&](int a, bool is_there, O* at) {
        if (is_there) store_vector(at, result_at(a));
      });
    } else {
      O* const to = output + starts_.of[0] + offset(tile, 0);
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) store_access(to, tile, a, result_at(a));
    }
  }

  // What the inputs make together, where the output's elements are.
  DIGLOT_DEVICE void store_joined(const Tile& tile, I* output) const {
    I* const to = output + starts_.of[0] + offset(tile, 0);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) store_access(to, tile, a, held_[0][a].get());
  }

 private:
  struct Nothing {};
  static constexpr bool kHasSteps = Shape::kTeam == Team::kColumns || !Shape::kIsWide;

  // The number of an element among those of a tile: the first of this thread, and from there on.
  DIGLOT_DEVICE int first_element() const { return place_.thread * (Shape::kIsWide ? kAlong : 1); }
  DIGLOT_DEVICE int elements_to(int a, int i) const {
    if constexpr (Shape::kIsWide) return a * place_.threads * kAlong + i % kAlong;
    return (a * kAlong + i % kAlong) * place_.threads;
  }
  DIGLOT_DEVICE bool is_there(const Tile& tile, int a, int i) const {
    return first_element() + elements_to(a, Shape::kIsWide ? 0 : i) < tile.left;
  }
  // The same in memory, of one of the arrays.
  DIGLOT_DEVICE int64_t offset(const Tile& tile, int array) const {
    return (tile.first + first_element()) * (kHasSteps ? rows_.steps[array] : 1);
  }
  DIGLOT_DEVICE int64_t step(int a, int i, int array) const {
    if constexpr (kHasSteps) return elements_to(a, i) * rows_.steps[array];
    return elements_to(a, i);
  }
  DIGLOT_DEVICE const I* address(const Tile& tile, int k, int a, int i) const {
    return inputs_[k] + offset(tile, k + 1) + step(a, i, k + 1);
  }

  template <typename O>
  DIGLOT_DEVICE void store_access(O* to, const Tile& tile, int a,
                                  const Vector<O, kElements>& access) const {
    if constexpr (Shape::kIsWide) {
      if (is_there(tile, a, 0)) store_vector(to + step(a, 0, 0), access);
    } else {
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (is_there(tile, a, i)) to[step(a, i, 0)] = access[i];
      }
    }
  }

  template <typename W>
  DIGLOT_DEVICE const W* bring_array(const W* array, const Tile& tile, int& at) const {
    if (array == nullptr) return nullptr;
    constexpr int kPart = kAccessBytes / static_cast<int>(sizeof(W));
    extern __shared__ uint4 kept_accesses[];
    W* const to = reinterpret_cast<W*>(kept_accesses + at / kAccessBytes);
    at += Shape::kThreads * kAccesses * kElements * static_cast<int>(sizeof(W));
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      // The array's first ones where there are none, so that the map needs no branch.
      const int first = first_element() + elements_to(a, 0);
      const W* const from = array + (is_there(tile, a, 0) ? tile.first + first : 0);
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; i += kPart) {
        copy_async(reinterpret_cast<uint4*>(to + first + i), from + i);
      }
    }
    return to;
  }

  // What read(k, a) gives of each input.
  template <typename Read>
  DIGLOT_DEVICE void hold(Read read) {
    if constexpr (kJoins<Operation>) {
      static_assert(kInputs == 2);
      HeldAccess of_inputs[kInputs][kAccesses];
      for_each_access([&](int k, int a) { of_inputs[k][a] = read(k, a); });
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const Access x = of_inputs[0][a].get(), y = of_inputs[1][a].get();
        Access joined;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) joined[i] = Operation::join(x[i], y[i]);
        held_[0][a] = HeldAccess::of(joined);
      }
    } else {
      for_each_access([&](int k, int a) { held_[k][a] = read(k, a); });
    }
  }

  DIGLOT_DEVICE HeldAccess read(const Tile& tile, int k, int a) const {
    if constexpr (Shape::kIsWide) {
      return is_there(tile, a, 0) ? HeldAccess{load_bits(address(tile, k, a, 0))} : absent();
    } else {
      Access access;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        access[i] = is_there(tile, a, i) ? *address(tile, k, a, i) : convert<I>(Operation::kAbsent);
      }
      return HeldAccess::of(access);
    }
  }
  DIGLOT_DEVICE static HeldAccess absent() {
    Access access;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) access[i] = convert<I>(Operation::kAbsent);
    return HeldAccess::of(access);
  }
  DIGLOT_DEVICE static uint4 load_bits(const I* address) {
    return *reinterpret_cast<const uint4*>(address);
  }
  DIGLOT_DEVICE static HeldAccess* kept(int place, int k, int a) {
    extern __shared__ uint4 kept_accesses[];
    return reinterpret_cast<HeldAccess*>(kept_accesses) +
           ((place * kInputs + k) * kAccesses + a) * Shape::kThreads + threadIdx.x;
  }

  DIGLOT_DEVICE static HeldAccess load_held(const I* address) {
    if constexpr (Shape::kIsWide) {
      return {load_bits(address)};
    } else {
      return HeldAccess::of({*address});
    }
  }
  // Calls function(a, is_there, address) for the thread's accesses to a tile of columns, of the
  // array of this number: from one to the next by an addition, so that few registers are taken.
  template <typename T, typename Function>
  DIGLOT_DEVICE void step_through(const Tile& tile, T* array, int number, Function function) const {
    T* at = as_it_is(array + offset(tile, number));
#if defined(__CUDA_ARCH__)
    __builtin_assume(__isGlobal(at));
#endif
    const int64_t apart = rows_.steps[number] * place_.threads;
    int left = tile.left - place_.thread;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      function(a, left > 0, at);
      at += apart, left -= place_.threads;
    }
  }

  template <typename Function>
  DIGLOT_DEVICE static void for_each_access(Function function) {
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) function(k, a);
    }
  }

  // One of each array that is held.
  struct Accesses {
    Access of[kHeld];
  };
  DIGLOT_DEVICE Accesses accesses_at(int a) const {
    Accesses accesses;
    DIGLOT_UNROLL
    for (int k = 0; k < kHeld; ++k) accesses.of[k] = held_[k][a].get();
    return accesses;
  }
  template <typename Function>
  DIGLOT_DEVICE static auto call(const Function& function, const Accesses& accesses, int i) {
    return call(function, accesses, i, std::make_integer_sequence<int, kHeld>{});
  }
  template <typename Function, int... kInput>
  DIGLOT_DEVICE static auto call(const Function& function, const Accesses& accesses, int i,
                                 std::integer_sequence<int, kInput...>) {
    return function(convert<compute_t<I>>(accesses.of[kInput][i])...);
  }
  template <typename Function>
  DIGLOT_DEVICE void visit_all(Function& function, const Tile& tile) const {
    static_assert(kRows == 1);
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) visit_access(function, tile, a, 0);
  }
  template <typename Function>
  DIGLOT_DEVICE void visit_access(Function& function, const Tile& tile, int a, int row) const {
    constexpr bool kVisitsAll = Operation::kVisitsAbsent;
    if (Shape::kIsWide && !kVisitsAll && !is_there(tile, a, 0)) return;
    const Accesses accesses = accesses_at(a);
    DIGLOT_UNROLL
    for (int i = row * kAlong; i < (row + 1) * kAlong; ++i) {
      if (Shape::kIsWide || kVisitsAll || is_there(tile, a, i)) call(function, accesses, i);
    }
  }

  template <int... kRow>
  DIGLOT_DEVICE auto of_rows(const Operation& operation,
                             std::integer_sequence<int, kRow...>) const {
    return RowsOf<Operation, kRows>{{of_row(operation, kRow)...}};
  }
  DIGLOT_DEVICE Operation of_row(const Operation& operation, int row) const {
    constexpr int kMore = kArrays - 1 - kInputs;
    int64_t offsets[kMore + 1];  // no array is empty
    DIGLOT_UNROLL
    for (int more = 0; more < kMore; ++more) {
      const int array = kInputs + 1 + more;
      offsets[more] = starts_.of[array];
      // Rows side by side are neighbours, of which the strides count accesses.
      if (kRows > 1) offsets[more] += row * (rows_.starts.strides[0][array] / kRows);
    }
    return operation.of_row(offsets, n_ > 0 && place_.thread == 0 && place_.block == 0);
  }

  HeldAccess held_[kHeld][kAccesses];
  const I* inputs_[kInputs];
  typename Strides<kArrays, int64_t>::Offsets starts_;
  RowPlace<Shape> place_;
  int64_t n_;
  // In registers, of which there are few, what is not among the kernel's arguments.
  const Rows<kArrays>& rows_;
};

// The states of columns side by side, combined of all threads of a block that have them:
// take(place, state) is called for each by one thread. Access `column` has states at the places
// row * side + column. `shared` has room for the states of all threads.
template <int kThreads, typename State, int kRows, typename Take>
DIGLOT_DEVICE void block_columns_reduce(RowsOf<State, kRows> states,
                                        State (&shared)[kRows * kThreads], int log_side,
                                        Take take) {
  const int side = 1 << log_side, thread = static_cast<int>(threadIdx.x);
  for (int apart = kWarpLanes / 2; apart >= side; apart /= 2) {
    DIGLOT_UNROLL
    for (int row = 0; row < kRows; ++row) {
      states.of[row] = combine(states.of[row], shuffle_down(states.of[row], apart));
    }
  }
  // The first threads write: of each warp, or of each turn of the columns if that is longer.
  const int turn = side < kWarpLanes ? kWarpLanes : side, column = thread & (side - 1);
  const int group = thread / turn, groups = kThreads / turn, columns = side * kRows;
  if (thread % turn < side) {
    DIGLOT_UNROLL
    for (int row = 0; row < kRows; ++row) {
      shared[group * columns + row * side + column] = states.of[row];
    }
  }
  __syncthreads();
  for (int own = thread; own < columns; own += kThreads) {
    State state = shared[own];
    for (int other = 1; other < groups; ++other) {
      state = combine(state, shared[other * columns + own]);
    }
    take(own, state);
  }
}

// Every thread gets the states combined of all threads of its rows, columns side by side, of all
// blocks that have them; each column is combined by one thread of a block. No block may end until
// all have arrived at the cluster's barrier once more.
template <int kThreads, typename State, int kRows>
DIGLOT_DEVICE void columns_reduce(RowsOf<State, kRows>& states, State (&shared)[kRows * kThreads],
                                  int log_side, int blocks) {
  const int side = 1 << log_side, thread = static_cast<int>(threadIdx.x);
  if (side == kThreads) return;  // and so one block: each thread has columns of its own
  block_columns_reduce<kThreads>(states, shared, log_side,
                                 [&](int place, const State& state) { shared[place] = state; });
  const int columns = side * kRows;
  State* totals = shared;
  if (blocks > 1) {
    cluster_sync();
    totals += columns;  // others still read what is before
    for (int own = thread; own < columns; own += kThreads) {
      State state = *at_rank(shared + own, 0);
      for (int block = 1; block < blocks; ++block) {
        state = combine(state, *at_rank(shared + own, block));
      }
      totals[own] = state;
    }
    cluster_arrive();
  }
  __syncthreads();
  DIGLOT_UNROLL
  for (int row = 0; row < kRows; ++row) {
    states.of[row] = totals[row * side + (thread & (side - 1))];
  }
}

// The same of blocks that have a row each, once every thread has the state of its block.
template <typename State>
DIGLOT_DEVICE State cluster_reduce(const State& state, State* shared, int blocks) {
  if (threadIdx.x == 0) *shared = state;
  cluster_sync();
  // Each lane reads one of the blocks' states.
  const int rank = static_cast<int>(threadIdx.x) & (blocks - 1);
  const State total = lanes_reduce(*at_rank(shared, rank), blocks);
  cluster_arrive();
  return total;
}

template <typename Operations, typename States, int... kRow>
DIGLOT_DEVICE auto maps_of(const Operations& operations, const States& states,
                           std::integer_sequence<int, kRow...>) {
  using Map = decltype(operations.of[0].map(states.of[0]));
  return RowsOf<Map, sizeof...(kRow)>{{operations.of[kRow].map(states.of[kRow])...}};
}

// What blocks of a cluster tell each other, a state for each row; of one block, nothing.
template <typename State>
class RowMessages {
 public:
  DIGLOT_DEVICE explicit RowMessages(int blocks) : blocks_(blocks) {}

  // All threads of all blocks call it once, when their loads are under way.
  DIGLOT_DEVICE void begin() {
    if (blocks_ > 1) messages().begin();
  }
  // The state of the whole row, of the number that this is for this block.
  DIGLOT_DEVICE State combine_with_others(const State& state, int block, unsigned number) {
    if (blocks_ == 1) return state;
    if (number == 0) cluster_wait();
    messages().exchange(state, block, blocks_, number);
    const int lane = static_cast<int>(threadIdx.x) & (blocks_ - 1);
    return lanes_reduce(messages().received(lane, number), blocks_);
  }

 private:
  using Messages = ClusterMessages<State, kMostClusterBlocks>;
  DIGLOT_DEVICE static Messages& messages() {
    __shared__ Messages messages;
    return messages;
  }

  const int blocks_;
};

// output = operation.map(total)(inputs...) by threads that hold all that they have of a row in
// registers: lanes, a block, or a cluster of blocks.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void hold_rows(const Rows<kArrays>& rows, const Operation& operation,
                             const Inputs<I, kInputs>& inputs, O* output) {
  constexpr bool kIsShared = Shape::kTeam == Team::kCluster;
  using State = typename Operation::State;
  using Tiles = RowTiles<Shape, Operation, I, kInputs, kArrays>;
  const RowPlace<Shape> place(rows);
  Tiles held(rows, place, inputs);
  const auto tile = held.tile(place.block);
  held.load(tile);
  [[maybe_unused]] const auto brought = held.bring(operation, tile, 0);
  RowMessages<State> messages(kIsShared ? rows.blocks() : 1);
  if constexpr (kIsShared) messages.begin();
  if constexpr (kJoins<Operation>) held.store_joined(tile, operation.joined);

  if constexpr (kReplaces<Operation>) {
    typename Tiles::Replaced replaced;
    const State own = held.reduce_replacing(operation, tile, replaced);
    State total = held.combine_in_team(own);
    if constexpr (kIsShared) total = messages.combine_with_others(total, place.block, 0);
    held.store_replaced(operation.map_replaced(own, total), replaced, tile, output);
  } else {
    State total = held.reduce_in_team(operation, tile);
    if constexpr (kIsShared) total = messages.combine_with_others(total, place.block, 0);
    wait_for_copies();
    held.store_by(operation, total, brought, tile, output);
  }
}

// The same by blocks that stay: each has one tile of a row in registers, and that of the next row
// on its way to shared memory.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void walk_over_rows(const Rows<kArrays>& rows, const Operation& operation,
                                  const Inputs<I, kInputs>& inputs, O* output) {
  static_assert(Shape::kTeam == Team::kCluster);
  using State = typename Operation::State;
  using Tiles = RowTiles<Shape, Operation, I, kInputs, kArrays>;
  const int64_t at_once = gridDim.x >> rows.log_blocks;
  RowPlace<Shape> place(rows);
  Tiles held(rows, place, inputs);
  held.fetch(held.tile(place.block), 0);
  const auto brought =
      held.bring(operation, held.tile(place.block), Shape::template kTileBytes<I, kInputs>);
  RowMessages<State> messages(rows.blocks());
  messages.begin();
  for (unsigned number = 0; place.row < rows.count; ++number) {
    wait_for_copies();
    const auto tile = held.tile(place.block);
    held.take(tile, 0);
    const auto now = held;
    place.row += at_once;
    if (place.row < rows.count) {
      held.go_to(place, inputs);
      held.fetch(held.tile(place.block), 0);
    }
    if constexpr (kJoins<Operation>) now.store_joined(tile, operation.joined);
    const State total =
        messages.combine_with_others(now.reduce_in_team(operation, tile), place.block, number);
    now.store_by(operation, total, brought, tile, output);
  }
}

// The same of rows of several tiles.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void take_tiles(const Rows<kArrays>& rows, const Operation& operation,
                              const Inputs<I, kInputs>& inputs, O* output) {
  using State = typename Operation::State;
  using Tiles = RowTiles<Shape, Operation, I, kInputs, kArrays>;
  const auto numbers = std::make_integer_sequence<int, Tiles::kRows>{};
  const RowPlace<Shape> place(rows);
  Tiles held(rows, place, inputs);
  const auto operations = held.of_rows(operation);
  // Of the tiles of its part of a row a block keeps the first in registers, the next in shared
  // memory; those beyond are read again.
  const int tiles = rows.tiles, kept = 1 + rows.places;
  const int first = place.block * tiles;
  const auto bring = [&](int t) {
    const auto tile = held.tile(first + t);
    if (t > 0 && t < kept) {
      held.take(tile, t - 1);
    } else {
      held.load(tile);
    }
    return tile;
  };

  for (int t = 1; t < kept; ++t) held.fetch(held.tile(first + t), t - 1);
  if (kept > 1) held.announce(held.tile(first));
  auto states = held.none();
  for (int t = tiles - 1; t >= 0; --t) {
    if (t > 0 && t == kept - 1) wait_for_copies();
    const auto tile = bring(t);
    if constexpr (kJoins<Operation>) held.store_joined(tile, operation.joined);
    const auto more = held.reduce(operations, tile);
    states = tiles > 1 ? combine(states, more) : more;
  }

  const int blocks = rows.blocks();
  if constexpr (Shape::kTeam == Team::kColumns) {
    __shared__ State shared[Tiles::kRows * Shape::kThreads];
    columns_reduce<Shape::kThreads>(states, shared, rows.log_side, blocks);
  } else {
    __shared__ State shared;
    states.of[0] = block_reduce<Shape::kThreads>(states.of[0]);
    if (blocks > 1) states.of[0] = cluster_reduce(states.of[0], &shared, blocks);
  }

  const auto maps = maps_of(operations, states, numbers);
  DIGLOT_NO_UNROLL
  for (int t = 0; t < tiles; ++t) {
    const auto tile = t == 0 ? held.tile(first) : bring(t);
    held.store(maps, tile, output);
  }
  if (blocks > 1) cluster_wait();
}

// Of columns that take two launches: a block's strip of them, and its chunk. Strips side by side
// are read at once.
struct ColumnChunk {
  int64_t strip;
  int number;

  template <int kArrays>
  DIGLOT_DEVICE ColumnChunk(const Rows<kArrays>& rows, unsigned block) {
    const unsigned strips = gridDim.x / static_cast<unsigned>(rows.chunks);
    strip = block % strips, number = static_cast<int>(block / strips);
  }
};

// The first launch: states[chunk][column] of all columns.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays>
DIGLOT_DEVICE void reduce_chunks(const Rows<kArrays>& rows, const Operation& operation,
                                 const Inputs<I, kInputs>& inputs,
                                 typename Operation::State* states) {
  using State = typename Operation::State;
  using Tiles = RowTiles<Shape, Operation, I, kInputs, kArrays>;
  constexpr int kRows = Tiles::kRows;
  let_next_launch_begin();
  const ColumnChunk chunk(rows, blockIdx.x);
  Tiles held(rows, RowPlace<Shape>(rows, chunk.strip), inputs);
  const auto operations = held.of_rows(operation);
  auto own = held.none();
  const int first = chunk.number * rows.tiles;
  DIGLOT_NO_UNROLL
  for (int t = first; t < first + rows.tiles; ++t) {
    const auto tile = held.tile(t);
    held.load(tile);
    own = combine(own, held.reduce(operations, tile));
  }
  __shared__ State shared[kRows * Shape::kThreads];
  const int64_t access = chunk.strip << rows.log_side;
  State* const to = states + chunk.number * rows.count * kRows;
  block_columns_reduce<Shape::kThreads>(
      own, shared, rows.log_side, [&](int place, const State& state) {
        const int row = place >> rows.log_side, column = place & ((1 << rows.log_side) - 1);
        if (access + column < rows.count) to[(access + column) * kRows + row] = state;
      });
}

// Every thread gets the states combined of all chunks of its columns. The block has `width` columns
// side by side, from `first` on of so many.
template <int kThreads, typename State, int kRows>
DIGLOT_DEVICE RowsOf<State, kRows> combine_chunks(const State* states, int chunks, int64_t columns,
                                                  int64_t first, int width,
                                                  State (&shared)[kRows * kThreads]) {
  constexpr int kLoads = 8;  // in flight for each thread
  const int thread = static_cast<int>(threadIdx.x);
  const int aside = width < kThreads ? width : kThreads, deep = kThreads / aside;
  const int group = thread / aside;
  for (int own = thread % aside; own < width; own += aside) {
    State state = State::none();
    const State* const from = states + first + own;
    const int there = first + own < columns ? chunks : 0;
    for (int chunk = group; chunk < there; chunk += deep * kLoads) {
      State loaded[kLoads];
      DIGLOT_UNROLL
      for (int load = 0; load < kLoads; ++load) {
        const int at = chunk + load * deep;
        loaded[load] = at < chunks ? from[at * columns] : State::none();
      }
      DIGLOT_UNROLL
      for (int load = 0; load < kLoads; ++load) state = combine(state, loaded[load]);
    }
    shared[group * width + own] = state;
  }
  __syncthreads();
  for (int own = thread; deep > 1 && own < width; own += kThreads) {
    State state = shared[own];
    for (int other = 1; other < deep; ++other) {
      state = combine(state, shared[other * width + own]);
    }
    shared[own] = state;
  }
  __syncthreads();
  RowsOf<State, kRows> result;
  const int column = thread & (width / kRows - 1);
  DIGLOT_UNROLL
  for (int row = 0; row < kRows; ++row) result.of[row] = shared[column * kRows + row];
  return result;
}

// The second launch, from the last chunk to the first, and likewise through each.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void map_chunks(const Rows<kArrays>& rows, const Operation& operation,
                              const Inputs<I, kInputs>& inputs, O* output,
                              const typename Operation::State* states) {
  using State = typename Operation::State;
  using Tiles = RowTiles<Shape, Operation, I, kInputs, kArrays>;
  constexpr int kRows = Tiles::kRows;
  const ColumnChunk chunk(rows, gridDim.x - 1 - blockIdx.x);
  Tiles held(rows, RowPlace<Shape>(rows, chunk.strip), inputs);
  const int first = chunk.number * rows.tiles;
  const int last = first + rows.tiles - 1;
  held.announce(held.tile(last));
  wait_for_launch_before();
  __shared__ State shared[kRows * Shape::kThreads];
  const auto totals = combine_chunks<Shape::kThreads, State, kRows>(
      states, rows.chunks, rows.count * kRows, (chunk.strip << rows.log_side) * kRows,
      kRows << rows.log_side, shared);
  const auto maps =
      maps_of(held.of_rows(operation), totals, std::make_integer_sequence<int, kRows>{});
  DIGLOT_NO_UNROLL
  for (int t = last; t >= first; --t) {
    const auto tile = held.tile(t);
    held.load(tile);
    held.store(maps, tile, output);
  }
}

// output = operation.map(total)(inputs...) row by row, where total is the state of all of a row's
// elements. Every thread calls it. `states`: of columns that take two launches, room for the states
// of all chunks of all columns.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays, typename O>
DIGLOT_DEVICE void reduce_then_map_rows(const Rows<kArrays>& rows, const Operation& operation,
                                        const Inputs<I, kInputs>& inputs, O* output,
                                        [[maybe_unused]]
                                        typename Operation::State* states = nullptr) {
  if constexpr (Shape::kWalk == Walk::kOnce) {
    hold_rows<Shape>(rows, operation, inputs, output);
  } else if constexpr (Shape::kWalk == Walk::kOn) {
    walk_over_rows<Shape>(rows, operation, inputs, output);
  } else if constexpr (Shape::kWalk == Walk::kReduce) {
    constexpr int kReduced = kReducedInputs<Operation, kInputs>;
    Inputs<I, kReduced> reduced;
    DIGLOT_UNROLL
    for (int k = 0; k < kReduced; ++k) reduced.of[k] = inputs.of[k];
    reduce_chunks<Shape>(rows, operation, reduced, states);
  } else if constexpr (Shape::kWalk == Walk::kMap) {
    map_chunks<Shape>(rows, operation, inputs, output, states);
  } else {
    take_tiles<Shape>(rows, operation, inputs, output);
  }
}

}  // namespace diglot
