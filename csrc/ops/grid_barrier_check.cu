// Phases between grid barriers. In each phase every block checks the words of all others: kernels,
// launcher, registration. Twin of triton_ops/grid_barrier_check.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/plan.h"
#include "diglot/sync/grid_barrier.cuh"
#include "torch/launcher.h"

#if !defined(DIGLOT_INTERPRETER)
#include <cooperative_groups.h>
#endif

namespace diglot {

#if !defined(DIGLOT_INTERPRETER)
// Cooperative groups' barrier, with which GridBarrier is compared.
struct CooperativeGroups {
  DIGLOT_DEVICE explicit CooperativeGroups(uint32_t*) {}
  DIGLOT_DEVICE void sync() { cooperative_groups::this_grid().sync(); }
};
#endif

constexpr int kCheckThreads = 256;
constexpr int kCheckWords = 8;  // words that a block writes in a phase, one for each warp

// In every phase each warp writes a word of slots[phase % 2][block]. After the barrier each block
// counts the words of all blocks that differ from this phase's. One barrier per phase is enough. A
// block writes to a slot again only after the next barrier, and no block reaches that before it has
// read the slot.
template <typename Barrier, bool kWrites, bool kReads>
__global__ void __launch_bounds__(kCheckThreads)
    grid_barrier_phases(uint32_t* barrier_state, int64_t phases, uint32_t* slots,
                        int32_t* mismatches) {
  Barrier barrier(barrier_state);
  const uint32_t word_count = gridDim.x * kCheckWords;
  for (int64_t phase = 0; phase < phases; ++phase) {
    uint32_t* const slot = slots + phase % 2 * word_count;
    const uint32_t first = static_cast<uint32_t>(phase) * word_count + 1;
    if (kWrites && threadIdx.x % 32 == 0) {
      const uint32_t element = blockIdx.x * kCheckWords + threadIdx.x / 32;
      slot[element] = first + element;
    }
    barrier.sync();
    if (kReads) {
      int wrong = 0;
      for (uint32_t i = threadIdx.x; i < word_count; i += kCheckThreads)
        wrong += slot[i] != first + i;
      if (wrong != 0) atomicAdd(mismatches + phase, wrong);
    }
  }
}

cudaError_t probe_device() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, grid_barrier_phases<GridBarrier, true, true>);
}

}  // namespace diglot

namespace {

using namespace diglot;

// `barrier` is "diglot", or "grid.sync" for cooperative groups' barrier. `run` says what the blocks
// do in a phase: "check", "read" without writing, or "wait" alone. `slots` is int32 [2, blocks,
// kCheckWords], `mismatches` int32 [phases], zeros. The grid has the number of blocks in `slots`;
// it is an error if they do not run at once.
void grid_barrier_check(Planner& planner, const Operand& slots, std::string_view barrier,
                        std::string_view run, const Operand& mismatches) {
  const auto word = planner.need({kBarrierBytes, kBarrierBytes, Lifetime::kStream}).as<uint32_t>();
  const auto start = [&](auto barrier, auto writes, auto reads) {
    using Barrier = typename decltype(barrier)::type;
    Launch how{static_cast<unsigned>(slots.numel / (2 * kCheckWords)), kCheckThreads};
    how.is_cooperative = true;
    planner.add<grid_barrier_phases<Barrier, decltype(writes)::value, decltype(reads)::value>>(
        how, word, mismatches.numel, slots.as<uint32_t>(), mismatches.as<int32_t>());
  };
  const auto start_with = [&](auto barrier) {
    if (run == "check") {
      start(barrier, std::true_type{}, std::true_type{});
    } else if (run == "read") {
      start(barrier, std::false_type{}, std::true_type{});
    } else {
      start(barrier, std::false_type{}, std::false_type{});
    }
  };
  if (barrier == "diglot") {
    start_with(Type<GridBarrier>{});
    planner.plan.variant = "grid barrier";
    return;
  }
#if defined(DIGLOT_INTERPRETER)
  throw std::invalid_argument("grid_barrier_check: the interpreter has no grid.sync()");
#else
  start_with(Type<CooperativeGroups>{});
  planner.plan.variant = "grid.sync()";
#endif
}

DIGLOT_LAUNCHER(
    grid_barrier_check,
    "(Tensor(a!) slots, str barrier, str run, Tensor(b!) mismatches, Tensor(z!)? scratch) "
    "-> ()")

}  // namespace
