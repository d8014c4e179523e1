// Sums over the teams of threads that share a row, in one block, a cluster or the grid, for norms'
// derivatives.
#pragma once

#include "diglot/norm/backward.cuh"
#include "diglot/reduce/warp_block.cuh"
#include "diglot/sync/cluster.cuh"
#include "diglot/sync/grid_barrier.cuh"

namespace diglot {

// Adds up states over teams, repeatedly. The teams of a block do not wait for each other, unless
// all blocks of the grid share every row.
template <typename State>
class TeamSum {
 public:
  // All threads of all blocks call it. Blocks of a grid that share rows need its barrier, and mail:
  // room for two states of each team of each block.
  DIGLOT_DEVICE explicit TeamSum(const NormSharing& rows, uint32_t* barrier = nullptr,
                                 void* mail = nullptr)
      : rows_(rows), barrier_(barrier), mail_(static_cast<uint32_t*>(mail)) {
    if (rows.spans_cluster()) shared().mailbox.open();
    first_warp_ = rows.team_of(static_cast<int>(threadIdx.x)) * rows.team / kWarpLanes;
  }

  // Every thread of a team gets the sums of all its threads. Where several blocks share a row, it
  // gets those of all blocks' threads. All threads call it. The halves of memory alternate: late
  // threads may still read the last turn's half, and a barrier lies between that and its next use.
  DIGLOT_DEVICE State operator()(State state) {
    state = sum_in_block(state);
    if (rows_.spans_cluster()) {
      auto& mailbox = shared().mailbox;
      const int lane = threadIdx.x % kWarpLanes;
      mailbox.exchange(state, static_cast<int>(blockIdx.x) & (rows_.blocks - 1), rows_.blocks,
                       number_);
      state = lanes_sum(mailbox.received(lane & (rows_.blocks - 1), number_), rows_.blocks);
    } else if (rows_.spans_grid) {
      state = sum_in_grid(state);
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

  DIGLOT_DEVICE State sum_in_block(State state) const {
    if (rows_.team < kWarpLanes) return lanes_sum(state, rows_.team);
    state = lanes_sum<kWarpLanes>(state);
    const int warps = rows_.team / kWarpLanes;
    if (warps == 1 && !rows_.spans_cluster()) return state;
    const int thread = computed_anew(static_cast<int>(threadIdx.x));
    const int warp = thread / kWarpLanes, lane = thread % kWarpLanes;
    State(&warp_states)[kMostWarps] = shared().warp_states[number_ % 2];
    if (lane == 0) warp_states[warp] = state;
    part_barrier(first_warp_, rows_.team);
    const int other = lane % kMostWarps;
    state = State::none();
    if (other < warps) state = warp_states[first_warp_ + other];
    return lanes_sum<kMostWarps>(state);
  }

  // Adds up a team's states of all blocks. Lanes take blocks in turn. The L1 cache may have old
  // states.
  DIGLOT_DEVICE State sum_in_grid(const State& state) const {
    constexpr int kWords = sizeof(State) / sizeof(uint32_t);
    const int thread = computed_anew(static_cast<int>(threadIdx.x)), team = rows_.team_of(thread);
    const int teams = rows_.teams, blocks = rows_.blocks;
    const int width = rows_.team < kWarpLanes ? rows_.team : kWarpLanes;
    uint32_t* const states =
        mail_ + static_cast<int64_t>(number_ % 2 * teams + team) * blocks * kWords;
    uint32_t words[kWords];
    if (thread == team * rows_.team) {
      memcpy(words, &state, sizeof(state));
      DIGLOT_UNROLL
      for (int i = 0; i < kWords; ++i) states[blockIdx.x * kWords + i] = words[i];
    }
    GridBarrier(barrier_).sync();
    constexpr int kLoads = 4;  // in flight for each thread
    State total = State::none();
    DIGLOT_NO_UNROLL
    for (int block = thread % width; block < blocks; block += kLoads * width) {
      State loaded[kLoads];
      DIGLOT_UNROLL
      for (int load = 0; load < kLoads; ++load) {
        const int number = block + load * width;
        loaded[load] = State::none();
        if (number >= blocks) continue;
        DIGLOT_UNROLL
        for (int i = 0; i < kWords; ++i) words[i] = __ldcg(states + number * kWords + i);
        memcpy(&loaded[load], words, sizeof(words));
      }
      DIGLOT_UNROLL
      for (int load = 0; load < kLoads; ++load) total = combine(total, loaded[load]);
    }
    return lanes_sum(total, width);
  }

  const NormSharing& rows_;
  uint32_t* barrier_;
  uint32_t* mail_;
  int first_warp_ = 0;  // of the team
  unsigned number_ = 0;
};

}  // namespace diglot
