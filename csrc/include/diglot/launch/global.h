// Host side of a kernel that reduces whole arrays and then maps them: how they are cut, and the
// launch. Twin of triton_ops/launch/global_.py.
#pragma once

#include "diglot/launch/plan.h"
#include "diglot/reduce/global.cuh"

namespace diglot {

// Bytes of shared memory where a block parks tiles between phases: as many tiles as fit, or 0 if
// each block has one tile.
inline int parking_bytes(Planner& planner, int64_t tiles, int tile_bytes) {
  const auto blocks = static_cast<int>(planner.tuned(Tunable::kGlobalBlocks));
  if (tiles <= int64_t{blocks} * planner.device.multiprocessors()) return 0;
  const int room = planner.device.shared_bytes() / blocks - kGlobalOtherBytes;
  return std::max(0, room / tile_bytes * tile_bytes);
}

// Plans function(integral_constant<int, accesses>{}, chunks) for arrays of type T with the same
// number of elements. The first is the output.
template <typename T, int kArrays, typename Function>
void cut_into_chunks(Planner& planner, const Operand* const (&operands)[kArrays],
                     Function function) {
  constexpr int kMost = kMostAccesses<T, kArrays - 1>;
  const int64_t n = operands[0]->numel;
  if (n == 0) return;
  bool is_aligned = true;
  for (const Operand* operand : operands) is_aligned &= operand->is_aligned();
  const auto try_accesses = [&](auto accesses, const char* aligned, const char* unaligned) {
    constexpr int kAccesses = decltype(accesses)::value;
    if constexpr (kAccesses <= kMost) {
      const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
      const int64_t tiles = quotient(n, Tile<T, 1, kAccesses>::kSize);
      if (kAccesses < kMost && tiles > planner.tuned(Tunable::kGlobalFewTiles)) return false;
      const int64_t chunk_tiles = quotient(tiles, planner.tuned(Tunable::kGlobalMostChunks));
      planner.plan.variant = is_aligned ? aligned : unaligned;
      function(
          accesses,
          Chunks{n, static_cast<int>(quotient(tiles, chunk_tiles)), static_cast<int>(chunk_tiles),
                 parking_bytes(planner, tiles, Tile<T, kArrays - 1, kAccesses>::kBytes),
                 is_aligned});
      return true;
    }
    return false;
  };
  try_accesses(std::integral_constant<int, 1>{}, "1 access per thread, 16 bytes each",
               "1 access per thread, split into elements") ||
      try_accesses(std::integral_constant<int, 2>{}, "2 accesses per thread, 16 bytes each",
                   "2 accesses per thread, split into elements") ||
      try_accesses(std::integral_constant<int, 4>{}, "4 accesses per thread, 16 bytes each",
                   "4 accesses per thread, split into elements") ||
      try_accesses(std::integral_constant<int, 8>{}, "8 accesses per thread, 16 bytes each",
                   "8 accesses per thread, split into elements") ||
      try_accesses(std::integral_constant<int, 16>{}, "16 accesses per thread, 16 bytes each",
                   "16 accesses per thread, split into elements");
}

// Plans kKernel with (chunks, a barrier's word, states, arguments...). It runs `blocks` blocks, or
// one for each chunk where `blocks` is 0. There are no more than chunks, or than run at once.
template <auto kKernel, typename State, typename... Held>
void launch_on_chunks(Planner& planner, const Chunks& chunks, int64_t blocks, const Held&... held) {
  const auto bytes = kBarrierBytes + chunks.count * static_cast<int64_t>(sizeof(State));
  const auto scratch = planner.need({bytes, kBarrierBytes, Lifetime::kStream});
  const int64_t most = blocks > 0 ? std::min<int64_t>(blocks, chunks.count) : chunks.count;
  const auto most_of_each = static_cast<int>(planner.tuned(Tunable::kGlobalBlocks));
  planner.add_cooperatively<kKernel>(most, most_of_each, kGlobalThreads, chunks.parking_bytes,
                                     chunks, scratch.as<uint32_t>(),
                                     (scratch + kBarrierBytes).as<State>(), held...);
}

}  // namespace diglot
