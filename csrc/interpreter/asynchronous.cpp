#include "interpreter/asynchronous.h"

#include <array>
#include <cstring>

#include "interpreter/block.h"
#include "interpreter/target.h"

namespace diglot::interpreter {

namespace {

std::size_t own_offset(const void* shared, const char* what, Place place) {
  Block& block = *current_block();
  const char* const byte = static_cast<const char*>(shared);
  if (!block.shared().contains(byte, byte + 1)) {
    fail(std::string(what) + " outside the block's shared memory", place);
  }
  return block.shared().offset(byte);
}

// The thread has waited for an mbarrier's phase.
void acquire(std::size_t offset, Scope scope) {
  Block& block = *current_block();
  const Mbarriers& barriers = block.mbarriers();
  block.acquire(barriers.released(offset, scope));
  Detector* const detector = block.cluster().detector();
  if (detector == nullptr || scope > Scope::kBlock) return;
  detector->note_narrow(block.component(block.thread()), barriers.other_block(offset));
}

void fence_proxy(Space space) {
  Block& block = *current_block();
  if (Detector* const detector = block.cluster().detector()) {
    detector->order().fence_proxy(block.component(block.thread()), space);
  }
}

// Notes that the thread uses an mbarrier, which must be ordered after its init.
void note_use(const Target& barrier, Access access, Place place) {
  Block& self = *current_block();
  Detector* const detector = self.cluster().detector();
  if (detector == nullptr) return;
  check_fault(detector->note(self.component(self.thread()), barrier.pointer(), kMbarrierBytes,
                             access, Scope::kSystem, place),
              place);
}

// Waits for an mbarrier of the block, and returns its offset.
std::size_t wait_for_phase(const void* barrier, bool parity, Place place) {
  Block& block = *current_block();
  Mbarriers& barriers = block.mbarriers();
  Mbarriers::Wait wait;
  const std::size_t offset = own_offset(barrier, "a wait for an mbarrier", place);
  check_fault(barriers.begin_wait(offset, parity, wait), place);
  note_use({&block, offset}, Access::kStrongRead, place);
  block.wait_until([&barriers, wait] { return barriers.has_ended(wait); }, "Mbarrier::wait()",
                   [&barriers, offset] { return barriers.account(offset); }, place);
  if (barriers.is_missed(wait)) {
    fail(
        "two phases of an mbarrier ended while a thread waited for the first: a GPU's thread may "
        "wait for ever",
        place);
  }
  return offset;
}

}  // namespace

std::uint32_t shared_address(const void* shared, Place place) {
  const std::size_t offset = own_offset(shared, "the shared address of memory", place);
  return current_block()->shared().address(offset);
}

std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank, Place place) {
  const unsigned blocks = current_block()->cluster().size();
  if (rank >= blocks) {
    fail("the shared memory of block " + std::to_string(rank) + " of a cluster of " +
             std::to_string(blocks),
         place);
  }
  return (rank + 1) << kRankBit | (address & kWindowMask);
}

const void* own_memory(std::uint32_t address, Place place) {
  return target_of(address, place).pointer();
}

const void* shared_of_rank(const void* shared, int rank, Place place) {
  const std::uint32_t address = shared_address(shared, place);
  return target_of(cluster_address(address, static_cast<std::uint32_t>(rank), place), place)
      .pointer();
}

void cluster_arrive(bool releases, Place place) {
  current_block()->arrive_at_cluster(releases, place);
}
void cluster_wait(Place place) { current_block()->wait_for_cluster(place); }

void mbarrier_init(void* barrier, std::uint32_t arrivals, Place place) {
  const std::size_t offset = own_offset(barrier, "an mbarrier", place);
  Block& block = *current_block();
  const int component = block.add_channel(), thread = block.thread().linear;
  check_fault(block.mbarriers().init(offset, arrivals, component, thread, place), place);
  Detector* const detector = block.cluster().detector();
  if (detector == nullptr) return;
  // The channel tells of the init alone, as a fence of inits does.
  const Channel channel{component, 1};
  Issue issue("the init of an mbarrier", place);
  issue.is_in_async_proxy = false;
  block.sign(issue);
  check_fault(detector->note(channel, issue, barrier, kMbarrierBytes, Access::kWrite), place);
  block.acquire(channel);
}

void mbarrier_invalidate(void* barrier, Place place) {
  const std::size_t offset = own_offset(barrier, "an mbarrier", place);
  Block& block = *current_block();
  check_fault(block.mbarriers().invalidate(offset), place);
  note_use({&block, offset}, Access::kWrite, place);
}

void mbarrier_arrive(std::uint32_t barrier, std::uint32_t arrivals, std::uint32_t bytes,
                     Place place) {
  const Target target = target_of(barrier, place);
  if (target.block->live_threads() == 0) {
    fail("an arrival at an mbarrier of a block that has ended: it leaves its cluster early", place);
  }
  note_use(target, Access::kAtomic, place);
  Block& self = *current_block();
  const Mbarriers::Arrival arrival{self.release(), target.block != &self, place};
  check_fault(target.block->mbarriers().arrive(target.offset, arrivals, bytes, arrival), place);
  note_change();
}

bool mbarrier_try_wait(const void* barrier, bool parity, Scope scope, Place place) {
  Block& block = *current_block();
  Mbarriers::Wait wait;
  const std::size_t offset = own_offset(barrier, "a wait for an mbarrier", place);
  check_fault(block.mbarriers().begin_wait(offset, parity, wait), place);
  note_use({&block, offset}, Access::kStrongRead, place);
  const bool has_ended = block.mbarriers().has_ended(wait);
  if (has_ended) {
    acquire(offset, scope);
  } else {
    block.poll(place);
  }
  return has_ended;
}

void mbarrier_wait(const void* barrier, bool parity, Scope scope, Place place) {
  acquire(wait_for_phase(barrier, parity, place), scope);
}

void mbarrier_wait_for_readers(const void* barrier, bool parity, Place place) {
  const std::size_t offset = wait_for_phase(barrier, parity, place);
  Block& block = *current_block();
  Clock& readers = block.thread().readers;
  readers = Order::join(readers, block.mbarriers().released(offset, Scope::kCluster));
}

void fence_mbarrier_init(Place) {
  Block& block = *current_block();
  Thread& thread = block.thread();
  const std::vector<int> components = block.mbarriers().fence(thread.linear);
  Detector* const detector = block.cluster().detector();
  if (detector == nullptr) return;
  for (const int component : components) {
    thread.inits = Order::join(thread.inits, detector->order().only(component, 1));
  }
}

void store_async(std::uint32_t to, const void* value, std::size_t bytes, std::uint32_t barrier,
                 Place place) {
  std::array<char, 16> copy{};
  std::memcpy(copy.data(), value, bytes);
  Block& self = *current_block();
  const Target target = target_of(to, place), signal = target_of(barrier, place);
  if (target.block != signal.block) {
    fail("st.async to one block, with the mbarrier of another", place);
  }
  Operation operation("an asynchronous store of " + std::to_string(bytes) + " bytes", place);
  operation.is_in_async_proxy = false;
  operation.uses_shared = false;
  operation.follows_readers = true;
  operation.complete = [target, signal, copy, bytes](const Operation& issued) {
    deliver(issued, target, signal, static_cast<std::uint32_t>(bytes), [&](const Channel&) {
      std::memcpy(target.pointer(), copy.data(), bytes);
      return "";
    });
  };
  self.issue(std::move(operation));
}

void copy_async(void* shared, const void* global, std::size_t bytes, Place place) {
  Block& block = *current_block();
  block.thread().copies.issue(block, shared, global, bytes, place);
}

void commit_copies(Place) { current_block()->thread().copies.commit(); }

void wait_for_copies_before(int newer, Place) {
  Block& block = *current_block();
  block.thread().copies.wait(block, static_cast<std::size_t>(newer));
}

void wait_for_copies(Place) {
  Block& block = *current_block();
  block.thread().copies.commit();
  block.thread().copies.wait(block, 0);
}

void named_barrier(int number, int threads, bool waits, Place place) {
  Block& block = *current_block();
  NamedBarriers& barriers = block.named_barriers();
  const std::uint32_t phase =
      number >= 0 && number < NamedBarriers::kCount ? barriers.phase(number) : 0;
  check_fault(barriers.arrive(number, threads, block.release(), place), place);
  note_change();
  if (!waits) return;
  block.wait_until([&barriers, number, phase] { return barriers.phase(number) != phase; },
                   "a named barrier", [&barriers, number] { return barriers.account(number); },
                   place);
  block.acquire(barriers.released(number));
}

void set_registers(int count, bool is_more, Place place) {
  Block& block = *current_block();
  const int warp = block.thread().warp();
  constexpr const char* kWhat = "setmaxnreg";
  const Lanes lanes = block.exchange(0xffffffffu, static_cast<std::uint64_t>(count), kWhat, place);
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes.mask >> lane & 1) != 0 && lanes.values[lane] != static_cast<std::uint64_t>(count)) {
      fail("setmaxnreg with different numbers in one warp", place);
    }
  }
  Registers& registers = block.registers();
  if (lanes.lane == 0) {
    check_fault(registers.ask(warp, count, is_more), place);
    block.wait_until([&registers, warp, count] { return registers.try_take(warp, count); }, kWhat,
                     [&registers, warp, count] { return registers.account(warp, count); }, place);
    note_change();
  }
  block.exchange(0xffffffffu, 0, kWhat, place);
}

bool elect_one(std::uint32_t mask, Place place) {
  const Lanes lanes = current_block()->exchange(mask, 0, "elect.sync", place);
  // Which lane it is, PTX does not say; it is the same each time.
  const std::uint64_t hash = (options().seed + 1) * 0x9e3779b97f4a7c15u >> 40;
  int skipped = static_cast<int>(hash % __builtin_popcount(lanes.mask));
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes.mask >> lane & 1) != 0 && skipped-- == 0) return lane == lanes.lane;
  }
  return false;
}

void fence_async_proxy(Place) {
  current_block()->mbarriers().fence();
  fence_proxy(Space::kShared);
}

void fence_async_proxy_global(Place) { fence_proxy(Space::kGlobal); }

}  // namespace diglot::interpreter
