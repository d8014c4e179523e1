// Sums over the teams of threads, or clusters, that share a row, for norms' derivatives.
#pragma once

#include "diglot/norm/backward.cuh"
#include "diglot/reduce/warp_block.cuh"
#include "diglot/sync/cluster.cuh"

namespace diglot {

// Adds up states over teams, repeatedly. The teams of a block do not wait for each other.
template <typename State>
class TeamSum {
 public:
  // All threads of all blocks call it.
  DIGLOT_DEVICE explicit TeamSum(const NormRows& rows) : rows_(rows) {
    if (rows.blocks > 1) shared().mailbox.open();
    const int warp = threadIdx.x / kWarpLanes;
    if (rows.team >= kWarpLanes) first_warp_ = warp - warp % (rows.team / kWarpLanes);
  }

  // Every thread of a team gets the sums of all its threads. Where a cluster shares a row, it gets
  // those of all blocks' threads. All threads call it. The halves of shared memory alternate: late
  // threads may still read the last turn's half, and a barrier lies between that and its next use.
  DIGLOT_DEVICE State operator()(State state) {
    if (rows_.team < kWarpLanes) return lanes_sum(state, rows_.team);
    state = lanes_sum<kWarpLanes>(state);
    const int warps = rows_.team / kWarpLanes;
    if (warps == 1 && rows_.blocks == 1) return state;
    const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
    State(&warp_states)[kMostWarps] = shared().warp_states[number_ % 2];
    if (lane == 0) warp_states[warp] = state;
    part_barrier(first_warp_, rows_.team);
    const int other = lane % kMostWarps;
    state = State::none();
    if (other < warps) state = warp_states[first_warp_ + other];
    state = lanes_sum<kMostWarps>(state);
    if (rows_.blocks > 1) {
      auto& mailbox = shared().mailbox;
      mailbox.exchange(state, static_cast<int>(blockIdx.x) & (rows_.blocks - 1), rows_.blocks,
                       number_);
      state = lanes_sum(mailbox.received(lane & (rows_.blocks - 1), number_), rows_.blocks);
    }
    ++number_;
    return state;
  }

 private:
  static constexpr int kMostWarps = kNormThreads / kWarpLanes;
  struct Shared {
    State warp_states[2][kMostWarps];
    ClusterMailbox<State, kMostClusterBlocks> mailbox;
  };
  DIGLOT_DEVICE static Shared& shared() {
    __shared__ Shared shared;
    return shared;
  }

  const NormRows& rows_;
  int first_warp_ = 0;  // of the team
  unsigned number_ = 0;
};

}  // namespace diglot
