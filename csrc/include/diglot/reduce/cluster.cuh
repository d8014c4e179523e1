// Reductions across the blocks of a cluster, once every thread has the state of its block.
#pragma once

#include "diglot/reduce/warp_block.cuh"
#include "diglot/sync/cluster.cuh"

namespace diglot {

// Every thread gets the combined states of `blocks` blocks; state_of(block) is the state of one.
// Each lane asks for one.
template <typename State, typename StateOf>
DIGLOT_DEVICE State reduce_blocks(int blocks, StateOf state_of) {
  const int block = static_cast<int>(threadIdx.x) % kMostClusterBlocks;
  return lanes_reduce(block < blocks ? state_of(block) : State::none(), kMostClusterBlocks);
}

// Every thread gets the combined states of its cluster's blocks. `state` is its own block's. No
// block may end before all have arrived at the cluster's barrier once more.
template <typename State>
DIGLOT_DEVICE State cluster_reduce(const State& state, State* shared, int blocks) {
  if (threadIdx.x == 0) *shared = state;
  cluster_sync();
  const State total =
      reduce_blocks<State>(blocks, [&](int block) { return *dsmem(shared, block); });
  cluster_arrive();
  return total;
}

// Exchanges the states of a row's parts among the blocks of a cluster. Does nothing where a block
// has the whole row.
template <typename State>
class RowMailbox {
 public:
  DIGLOT_DEVICE explicit RowMailbox(int blocks) : blocks_(blocks) {}

  // All threads of all blocks call it once, after they have issued their loads.
  DIGLOT_DEVICE void begin() {
    if (blocks_ > 1) mailbox().begin();
  }
  // The state of the whole row.
  DIGLOT_DEVICE State combine_with_others(const State& state, int block) {
    if (blocks_ == 1) return state;
    cluster_wait();
    mailbox().exchange(state, block, blocks_, 0);
    return reduce_blocks<State>(blocks_,
                                [&](int other) -> State { return mailbox().received(other, 0); });
  }

 private:
  using Mailbox = ClusterMailbox<State, kMostClusterBlocks>;
  DIGLOT_DEVICE static Mailbox& mailbox() {
    __shared__ Mailbox mailbox;
    return mailbox;
  }

  const int blocks_;
};

}  // namespace diglot
