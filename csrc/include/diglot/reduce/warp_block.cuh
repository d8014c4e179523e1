// Reductions across the lanes of a warp and the threads of a block, of any state, in one fixed
// order. Twin of triton_ops/lib/reduce/states.py, whose compiler chooses the order.
//
//   MaxSum<float> state = MaxSum<float>::none();
//   for (...) state = combine(state, ...);
//   state = block_reduce<kThreads>(state);  // every thread has it
#pragma once

#include <cstring>

#include "diglot/mma/warpgroup.cuh"
#include "diglot/reduce/states.cuh"

namespace diglot {

constexpr int kWarpLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Shuffles a state word by word.
template <typename State, typename Shuffle>
DIGLOT_DEVICE State shuffle_words(const State& state, Shuffle shuffle) {
  constexpr int kWords = sizeof(State) / sizeof(uint32_t);
  uint32_t bits[kWords];
  memcpy(bits, &state, sizeof(state));
  DIGLOT_UNROLL
  for (int i = 0; i < kWords; ++i) bits[i] = shuffle(bits[i]);
  State result;
  memcpy(&result, bits, sizeof(state));
  return result;
}

// The state of the lane `lanes` further on; the lane's own at the end of the warp.
template <typename State>
DIGLOT_DEVICE State shuffle_down(const State& state, int lanes) {
  return shuffle_words(state,
                       [=](uint32_t word) { return __shfl_down_sync(kAllLanes, word, lanes); });
}

// The state of the lane of this number.
template <typename State>
DIGLOT_DEVICE State shuffle_from(const State& state, int lane) {
  return shuffle_words(state, [=](uint32_t word) { return __shfl_sync(kAllLanes, word, lane); });
}

// The state of the lane whose number differs in the bits of `lanes`.
template <typename State>
DIGLOT_DEVICE State shuffle_across(const State& state, int lanes) {
  return shuffle_words(state,
                       [=](uint32_t word) { return __shfl_xor_sync(kAllLanes, word, lanes); });
}

// The first lane gets the combined states of kLanes lanes, pairwise.
template <int kLanes = kWarpLanes, typename State>
DIGLOT_DEVICE State warp_reduce(State state) {
  DIGLOT_UNROLL
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    state = combine(state, shuffle_down(state, lanes));
  }
  return state;
}

// Each lane gets the combined states of its group of `lanes` neighbours, a power of two.
template <typename State>
DIGLOT_DEVICE State lanes_reduce(State state, int lanes) {
  const int first = static_cast<int>(threadIdx.x) % kWarpLanes & ~(lanes - 1);
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    state = combine(state, shuffle_down(state, distance));
  }
  return shuffle_from(state, first);
}

// The same in fewer steps, for states whose combine(a, b) equals combine(b, a) bit by bit, such as
// sums.
template <typename State>
DIGLOT_DEVICE State lanes_sum(State state, int lanes) {
  DIGLOT_UNROLL
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    if (distance < lanes) state = combine(state, shuffle_across(state, distance));
  }
  return state;
}

// The same for a number of lanes known at compile time.
template <int kLanes, typename State>
DIGLOT_DEVICE State lanes_sum(State state) {
  DIGLOT_UNROLL
  for (int distance = 1; distance < kLanes; distance *= 2) {
    state = combine(state, shuffle_across(state, distance));
  }
  return state;
}

// A barrier of a part of a block: `threads` neighbouring threads, whole warps. Parts have numbers
// below 15.
DIGLOT_DEVICE void part_barrier(int number, int threads, Place place = Place::here()) {
  named_barrier_sync(number + 1, threads, place);
}

// Every thread of a block of kThreads threads gets their combined state: within each warp first,
// then across warps. All threads call it.
template <int kThreads, typename State>
DIGLOT_DEVICE State block_reduce(State state) {
  constexpr int kWarps = kThreads / kWarpLanes;
  static_assert(kWarps * kWarpLanes == kThreads && (kWarps & (kWarps - 1)) == 0);
  __shared__ State states[kWarps + 1];
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  state = warp_reduce(state);
  if (lane == 0) states[warp] = state;
  __syncthreads();
  if (warp == 0) {
    state = warp_reduce<kWarps>(states[lane % kWarps]);
    if (lane == 0) states[kWarps] = state;
  }
  // No warp overwrites the result in a second call before all warps have read it: a barrier of that
  // call lies in between.
  __syncthreads();
  return states[kWarps];
}

constexpr int power_of_two_ceiling(int n) {
  int result = 1;
  while (result < n) result *= 2;
  return result;
}

// Exchanges states across the warps of a block, of kMostWarps at most. Each warp gives the state of
// its first lane. Lane i gets the state of warp i, or none(). The next lanes do too, if kMostWarps
// is at most 16. It takes one barrier. `turn` counts the block's calls: slots alternate, so that
// none is overwritten before all warps have read it.
template <int kMostWarps, typename State>
DIGLOT_DEVICE State exchange_warps_in_turn(const State& state, unsigned turn) {
  static_assert(kMostWarps <= kWarpLanes);
  __shared__ State states[2][kMostWarps];
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  if (lane == 0) states[turn % 2][warp] = state;
  __syncthreads();
  const int other = lane % power_of_two_ceiling(kMostWarps);
  return other < warps ? states[turn % 2][other] : State::none();
}

// Every thread of a block of at most kMostWarps warps gets their combined state, by one barrier.
template <int kMostWarps, typename State>
DIGLOT_DEVICE State block_reduce_in_turn(State state, unsigned turn) {
  state = warp_reduce(state);
  if (blockDim.x > kWarpLanes) {
    state = warp_reduce<power_of_two_ceiling(kMostWarps)>(
        exchange_warps_in_turn<kMostWarps>(state, turn));
  }
  return shuffle_from(state, 0);
}

}  // namespace diglot
