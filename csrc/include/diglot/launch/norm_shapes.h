// The compiled shapes of the norms' backward kernels (norm/backward.cuh), and their variants'
// names. A planner goes through them (norm_backward.h).
#pragma once

#include <tuple>
#include <type_traits>

#include "diglot/norm/backward.cuh"

namespace diglot {

// Compiled shapes. Wide has units of 16 bytes, Narrow of a word. Streaming reads rows twice.
template <typename T>
struct NormBackwardShapes {
  template <int... kAccesses>
  using WideList = std::tuple<NormShape<kAccesses, true>...>;
  using Wide = std::conditional_t<
      sizeof(T) == 2, WideList<1, 2, 3, 4, 5, 6>,
      std::conditional_t<sizeof(T) == 4, WideList<1, 4, 6, 8, 11>, WideList<1, 4>>>;
  template <int... kAccesses>
  using NarrowList = std::tuple<NormShape<kAccesses, false>...>;
  using Narrow =
      std::conditional_t<sizeof(T) == 2,
                         std::tuple<NormShape<1, false>, NormShape<2, false>, NormLanesShape<2>,
                                    NormShape<4, false>, NormShape<6, false>>,
                         std::conditional_t<sizeof(T) == 4, NarrowList<1, 4, 6>, NarrowList<1, 4>>>;
  // Few, since they serve few calls.
  using StridedWide = std::conditional_t<
      sizeof(T) == 2, std::tuple<NormStridedShape<2, true>, NormStridedShape<6, true>>,
      std::conditional_t<sizeof(T) == 4,
                         std::tuple<NormStridedShape<4, true>, NormStridedShape<11, true>>,
                         std::tuple<NormStridedShape<4, true>>>>;
  using StridedNarrow =
      std::conditional_t<sizeof(T) == 8,
                         std::tuple<NormStridedShape<1, false>, NormStridedShape<4, false>>,
                         std::tuple<NormStridedShape<1, false>, NormStridedShape<6, false>>>;
  template <bool kIsWide>
  using Streaming = NormShape<(sizeof(T) == 2 ? 1 : 2) * (kIsWide ? 2 : 1), kIsWide>;
};

struct NormVariantNames {
  const char* in_lanes;
  const char* in_block;
  const char* in_cluster;
  const char* in_grid;
  const char* two_pass;
};
template <typename Shape>
constexpr NormVariantNames kNormVariantNames =
    Shape::kIsWide
        ? NormVariantNames{"rows in lanes, 16-byte accesses",
                           "a row in shared memory, 16-byte accesses",
                           "a row across a cluster, 16-byte accesses",
                           "a row across the grid, 16-byte accesses",
                           "a row read twice, 16-byte accesses"}
        : NormVariantNames{"rows in lanes", "a row in shared memory", "a row across a cluster",
                           "a row across the grid", "a row read twice"};

}  // namespace diglot
