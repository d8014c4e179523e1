#include "interpreter/bulk.h"

#include <cstring>
#include <utility>

#include "interpreter/image.h"
#include "interpreter/memory.h"
#include "interpreter/target.h"
#include "interpreter/tensor_map.h"
#include "interpreter/work.h"

namespace diglot::interpreter {

namespace {

constexpr std::uint32_t kUnit = 16;

// The bytes that an operation moves between global and shared memory. A run's shared address counts
// from the beginning of the box.
struct Traffic {
  std::vector<BoxRun> runs;
  std::uint32_t bytes = 0;
  std::optional<TensorDescription> tensor;  // if the operation is on a tensor

  // Those of the tensor, without what a box has outside.
  std::uint64_t inside_bytes() const {
    std::uint64_t sum = 0;
    for (const BoxRun& run : runs) sum += run.is_inside ? run.bytes : 0;
    return sum;
  }
  std::string name(const char* what) const {
    return std::string("a bulk ") + what + " of " + std::to_string(bytes) + " bytes";
  }
};

TensorDescription read_map(const void* map, Place place) {
  constexpr std::uintptr_t kMapAlignment = 64;
  check(map, kTensorMapBytes, Access::kRead, place);
  if (reinterpret_cast<std::uintptr_t>(map) % kMapAlignment != 0) {
    fail("a tensor map at an address that is no multiple of 64", place);
  }
  const auto* const first = static_cast<const char*>(map);
  if (current_block()->cluster().owner(first, first + kTensorMapBytes) != nullptr) {
    fail("a tensor map in shared memory: it must be a parameter, or in constant or global memory",
         place);
  }
  std::optional<TensorDescription> tensor = decode_tensor_map(map);
  if (!tensor) fail("what is given as a tensor map is none", place);
  const std::vector<Range>* const ranges = current_block()->grid().arguments;
  const auto* const begin = static_cast<const char*>(tensor->address);
  if (ranges != nullptr && find(*ranges, begin, begin + 1, Access::kRead) == nullptr) {
    fail(
        "a tensor map of memory that is none of this launch's tensors: it may have been freed "
        "since the map was encoded",
        place);
  }
  return *std::move(tensor);
}

Traffic traffic_of(const void* map, const Coordinates& begin, std::uint32_t shared, BoxMove move,
                   Place place) {
  Traffic traffic;
  traffic.tensor = read_map(map, place);
  const std::uint32_t address = shared & kWindowMask;
  check_fault(fault_of_box(*traffic.tensor, begin, address, move), place);
  traffic.bytes = traffic.tensor->box_bytes();
  walk_box(*traffic.tensor, begin, address, [&](BoxRun run) {
    run.shared -= address;
    if (!traffic.runs.empty()) {  // neighbours are moved as one
      BoxRun& last = traffic.runs.back();
      const bool follows =
          run.global == last.global + last.bytes && run.shared == last.shared + last.bytes;
      if (follows && run.is_inside == last.is_inside) {
        last.bytes += run.bytes;
        return;
      }
    }
    traffic.runs.push_back(run);
  });
  return traffic;
}

// The same for a plain copy. `other` is the address at its other end, as the kernel names it.
Traffic traffic_of(const void* source, std::uint64_t other, std::uint32_t bytes,
                   std::uint32_t shared, Place place) {
  if (bytes % kUnit != 0 || other % kUnit != 0 || shared % kUnit != 0) {
    fail("a bulk copy of " + std::to_string(bytes) + " bytes between shared address " +
             std::to_string(shared & kWindowMask) + " and address " + std::to_string(other) +
             ": each number must be a multiple of 16",
         place);
  }
  Traffic traffic;
  traffic.bytes = bytes;
  if (bytes > 0) traffic.runs.push_back({reinterpret_cast<std::uint64_t>(source), 0, bytes, true});
  return traffic;
}

Traffic traffic_of(const void* global, std::uint32_t bytes, std::uint32_t shared, Place place) {
  return traffic_of(global, reinterpret_cast<std::uint64_t>(global), bytes, shared, place);
}

// Moves the bytes of a load. Returns the fault, or "".
std::string load(const Operation& issued, const Traffic& traffic, const Target& to,
                 const Channel& channel) {
  Detector* const detector = to.block->cluster().detector();
  std::shared_ptr<const Tiles::Box> box;
  if (detector != nullptr && traffic.tensor) {
    box = std::make_shared<Tiles::Box>(Tiles::Box{issued.site});
  }
  std::uint32_t place = 0;
  for (const BoxRun& run : traffic.runs) {
    char* const local = to.pointer() + run.shared;
    if (box != nullptr) detector->tiles().write({box, place, run.global}, local, run.bytes);
    place += run.bytes;
    if (!run.is_inside) {
      fill_outside(*traffic.tensor, local, run.bytes);
      continue;
    }
    const auto* const global = reinterpret_cast<const char*>(run.global);
    const std::string fault =
        find_fault(*to.block, issued, channel, global, run.bytes, Access::kRead);
    if (!fault.empty()) return fault;
    std::memcpy(local, global, run.bytes);
  }
  return "";
}

// Issues a copy to one block.
void issue_load(const Traffic& traffic, const char* what, std::uint32_t to_address,
                std::uint32_t barrier_address, bool uses_shared, Place place) {
  Block& self = *current_block();
  const Target to = target_of(to_address, place), barrier = target_of(barrier_address, place);
  if (to.block != barrier.block) {
    fail(traffic.name(what) + " to one block, with the mbarrier of another", place);
  }
  if (!barrier.block->mbarriers().is_fenced(barrier.offset)) {
    fail(traffic.name(what) + " signals an mbarrier that may not be visible to it: " +
             "fence_mbarrier_init() is missing since it was initialised",
         place);
  }
  Operation operation(traffic.name(what), place);
  operation.uses_shared = uses_shared || to.block == &self;
  operation.follows_readers = true;
  operation.complete = [traffic, to, barrier](const Operation& issued) {
    deliver(issued, to, barrier, traffic.bytes,
            [&](const Channel& channel) { return load(issued, traffic, to, channel); });
  };
  self.issue(std::move(operation));
}

// Issues a load to a block, or loads to the same place in each block of a mask.
void issue_loads(const Traffic& traffic, std::uint32_t to, std::uint32_t barrier, BlockMask mask,
                 Place place) {
  add_work({traffic.inside_bytes(), 0, 0});
  if (mask == 0) return issue_load(traffic, "load", to, barrier, false, place);
  const unsigned blocks = current_block()->cluster().size();
  if (mask >> blocks != 0) {
    fail("a multicast to blocks by the mask " + std::to_string(mask) + ", in a cluster of " +
             std::to_string(blocks),
         place);
  }
  for (std::uint32_t rank = 0; rank < blocks; ++rank) {
    if ((mask >> rank & 1) == 0) continue;
    const std::uint32_t window = (rank + 1) << kRankBit;
    issue_load(traffic, "load", window | (to & kWindowMask), window | (barrier & kWindowMask),
               false, place);
  }
}

// Writes the bytes of a store, or combines them with the destination's. Returns the fault, or "".
std::string store(Block& block, const Issue& issue, const Traffic& traffic, const Channel& channel,
                  const std::vector<char>& values, std::optional<Reduction> reduction) {
  for (const BoxRun& run : traffic.runs) {
    if (!run.is_inside) continue;
    auto* const global = reinterpret_cast<char*>(run.global);
    const char* const local = values.data() + run.shared;
    const Access access = reduction ? Access::kAtomic : Access::kWrite;
    const std::string fault = find_fault(block, issue, channel, global, run.bytes, access);
    if (!fault.empty()) return fault;
    if (reduction) {
      reduce_into(global, local, run.bytes, traffic.tensor->type, *reduction);
    } else {
      std::memcpy(global, local, run.bytes);
    }
  }
  return "";
}

// Issues a store or a reduction: it reads its source at one time, and writes at a later one.
void issue_store(const Traffic& traffic, std::uint32_t from_address, const char* what,
                 std::optional<Reduction> reduction, Place place) {
  Block& self = *current_block();
  const Target from = target_of(from_address, place);
  if (from.block != &self) fail("a bulk store from another block's shared memory", place);
  add_work({0, traffic.inside_bytes(), 0});
  BulkGroups& groups = self.thread().bulk_groups;
  if (groups.read_component < 0) {
    groups.read_component = self.add_channel();
    groups.write_component = self.add_channel();
  }
  const std::shared_ptr<BulkGroup> group = groups.add();
  const Channel reads{groups.read_component, group->number};
  const Channel writes{groups.write_component, group->number};
  Operation read(traffic.name(what), place);
  read.complete = [&self, traffic, from, group, reduction, reads, writes](const Operation& issued) {
    const std::string fault =
        find_fault(self, issued, reads, from.pointer(), traffic.bytes, Access::kRead);
    if (!fault.empty()) return self.fail_operation(fault, issued);
    std::vector<char> values(from.pointer(), from.pointer() + traffic.bytes);
    --group->unread;
    Operation write = issued;
    write.uses_shared = false;
    write.complete = [&self, traffic, group, reduction, writes,
                      values = std::move(values)](const Operation& read_before) {
      const std::string fault = store(self, read_before, traffic, writes, values, reduction);
      if (!fault.empty()) return self.fail_operation(fault, read_before);
      --group->unwritten;
    };
    self.cluster().queue().issue(std::move(write));
  };
  self.issue(std::move(read));
}

}  // namespace

void load_tensor(const void* map, const Coordinates& begin, std::uint32_t to, std::uint32_t barrier,
                 BlockMask mask, Place place) {
  issue_loads(traffic_of(map, begin, to, BoxMove::kLoad, place), to, barrier, mask, place);
}

void bulk_load(const void* global, std::uint32_t bytes, std::uint32_t to, std::uint32_t barrier,
               BlockMask mask, Place place) {
  issue_loads(traffic_of(global, bytes, to, place), to, barrier, mask, place);
}

void bulk_send(std::uint32_t from, std::uint32_t bytes, std::uint32_t to, std::uint32_t barrier,
               Place place) {
  const Target source = target_of(from, place);
  if (source.block != current_block()) fail("a bulk send of another block's memory", place);
  issue_load(traffic_of(source.pointer(), from, bytes, to, place), "send", to, barrier, true,
             place);
}

void store_tensor(const void* map, const Coordinates& begin, std::uint32_t from, Place place) {
  issue_store(traffic_of(map, begin, from, BoxMove::kStore, place), from, "store", std::nullopt,
              place);
}

void reduce_tensor(const void* map, const Coordinates& begin, std::uint32_t from,
                   Reduction reduction, Place place) {
  const Traffic traffic = traffic_of(map, begin, from, BoxMove::kStore, place);
  check_fault(fault_of_reduction(traffic.tensor->type, reduction), place);
  issue_store(traffic, from, "reduction", reduction, place);
}

void bulk_store(void* global, std::uint32_t bytes, std::uint32_t from, Place place) {
  issue_store(traffic_of(global, bytes, from, place), from, "store", std::nullopt, place);
}

void commit_bulk_group(Place) { current_block()->thread().bulk_groups.commit(); }

void wait_bulk_groups(int newer, bool only_read, Place place) {
  Block& block = *current_block();
  const BulkGroups& groups = block.thread().bulk_groups;
  block.wait_until(
      [&groups, newer, only_read] {
        return groups.are_over(static_cast<std::size_t>(newer), only_read);
      },
      "a wait for bulk groups", [&groups, only_read] { return groups.account(only_read); }, place);
  if (groups.read_component < 0) return;
  const std::uint32_t last = groups.last_over(static_cast<std::size_t>(newer));
  block.acquire({groups.read_component, last});
  if (!only_read) block.acquire({groups.write_component, last});
}

void prefetch_tensor(const void* map, const Coordinates& begin, Place place) {
  check_fault(fault_of_box(read_map(map, place), begin, 0, BoxMove::kLoad), place);
}

void check_tensor_map(const void* map, Place place) { read_map(map, place); }

void refuse_written_map(Place place) {
  fail("fence.proxy.tensormap: the interpreter does not model tensor maps that a kernel writes",
       place);
}

}  // namespace diglot::interpreter
