// An all-reduce by stores in other ranks' memory. Twin of triton_ops/lib/sync/put.py.
#pragma once

#include "diglot/sync/exchange.cuh"

namespace diglot {

// Put: each rank stores its data in the buffers of all peers, and reduces what arrives. No rank
// reads another's memory. Half of the blocks store, and signal after each tile. The others wait for
// the tiles of one such block of all ranks. Their own rank is one of them, so `out` may be the
// input. Each tile of a block takes an epoch. Their number is odd, so that launches use the two
// buffers by turns. A sender has a place of its own in each peer's buffer, and what keeps it from
// storing too early is as in two shots. `input` begins at a multiple of 16 bytes.
template <int kRanks, typename T, typename Op>
DIGLOT_DEVICE void put_and_reduce(SignalSpace* space, const Party& party, int64_t staging,
                                  int64_t buffer_bytes, int64_t n, const T* input, float divisor,
                                  T* out) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  constexpr int kLoads = kPulledBytes / kAccessBytes / kRanks;
  constexpr int64_t kTile = int64_t{kLoads} * kPullThreads * kElements;
  const int rank = party.rank, ranks = party.ranks;
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int pairs = blocks > 1 ? blocks / 2 : 1;
  const int64_t tiles = (n + kTile - 1) / kTile, turns = (tiles + pairs - 1) / pairs;
  char* owners[kRanks];
  load_owners(space, party, owners);
  Signals signals(space, party, turns | 1, true);
  staging += signals.parity() * buffer_bytes;
  const int64_t place = buffer_bytes / (ranks > 1 ? ranks - 1 : 1) / kAccessBytes * kAccessBytes;
  // Where the data of a sender lie in the buffer of a rank, whose workspace is given.
  const auto received = [&](auto* workspace, int receiver, int sender) {
    return reinterpret_cast<char*>(workspace) + staging +
           (sender - (sender > receiver ? 1 : 0)) * place;
  };
  const auto index = [&](int64_t first, int l) {
    return first + (l * kPullThreads + threadIdx.x) * kElements;
  };
  const auto load_own = [&](int64_t first, uint4(&bits)[kLoads]) {
    if (first + kTile <= n) {
      DIGLOT_UNROLL
      for (int l = 0; l < kLoads; ++l) bits[l] = load_at_once(input + index(first, l));
    } else {
      DIGLOT_UNROLL
      for (int l = 0; l < kLoads; ++l) {
        const auto values = load_within<kElements>(input, index(first, l), n, true);
        memcpy(&bits[l], &values, sizeof(values));
      }
    }
  };
  if (block < pairs && !signals.has_failed_before()) {
    for (int64_t turn = 0; turn < turns; ++turn) {
      const int64_t first = (block + turn * pairs) * kTile;
      if (first >= n) break;
      uint4 bits[kLoads];
      load_own(first, bits);
      DIGLOT_UNROLL
      for (int l = 0; l < kLoads; ++l) {
        const int64_t i = index(first, l);
        if (i >= n) continue;
        DIGLOT_UNROLL
        for (int r = 0; r < kRanks; ++r) {
          if (r >= ranks || r == rank) continue;
          reinterpret_cast<uint4*>(received(owners[r], r, rank))[i / kElements] = bits[l];
        }
      }
      __syncthreads();
      signals.arrive(kClosing, turn);
    }
  }
  const int storing = blocks > 1 ? block - pairs : 0;
  if (storing < 0 || storing >= pairs) return;
  const Reduction<T, Op> reduction{{out}, ranks, divisor};
  for (int64_t turn = 0; turn < turns; ++turn) {
    const int64_t first = (storing + turn * pairs) * kTile;
    if (first >= n) break;
    const bool have_met = signals.wait_for(storing, kClosing, turn);
    uint4 own[kLoads], bits[kLoads][kRanks];
    load_own(first, own);
    DIGLOT_UNROLL
    for (int l = 0; l < kLoads; ++l) {
      const int64_t i = index(first, l);
      DIGLOT_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        const bool is_own = r >= ranks || r == rank;
        const T* const theirs = reinterpret_cast<const T*>(received(space, rank, is_own ? 0 : r));
        bits[l][r] = is_own ? own[l] : load_at_once(theirs + (i < n ? i : first));
      }
    }
    DIGLOT_UNROLL
    for (int l = 0; l < kLoads; ++l) {
      const int64_t i = index(first, l);
      if (i >= n) continue;
      Vector<T> values[kRanks];
      unpack_ranks(bits[l], values);
      reduction.take(values, i, n, have_met);
    }
  }
}

}  // namespace diglot
