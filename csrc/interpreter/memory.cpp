// Checks a kernel's accesses: whether the memory is the kernel's, and for shared memory, whether a
// thread of the block has written it and whether threads race for it.
#include "interpreter/memory.h"

#include <algorithm>

#include "interpreter/block.h"
#include "interpreter/image.h"

namespace diglot::interpreter {

namespace {

// Where the nearest of the ranges lies, for a message.
std::string beside(const std::vector<Range>& ranges, const char* begin, const char* end) {
  const Range* nearest = nullptr;
  std::ptrdiff_t least = PTRDIFF_MAX;
  for (const Range& range : ranges) {
    const std::ptrdiff_t distance = begin < range.begin ? range.begin - end : begin - range.end;
    if (distance < least) least = distance, nearest = &range;
  }
  if (nearest == nullptr) return "the kernel was given no memory";
  if (begin < nearest->begin && end > nearest->begin) return "across the beginning of a tensor";
  if (begin < nearest->end && end > nearest->end) return "across the end of a tensor";
  return std::to_string(least) + " bytes " + (begin < nearest->begin ? "before" : "after") +
         " a tensor of " + std::to_string(nearest->end - nearest->begin) + " bytes";
}

std::string padding_is_read(const Range& range, const char* padding, const char* end) {
  const auto place = static_cast<std::size_t>(padding - range.begin);
  const std::size_t first = place % range.pitch;
  const std::size_t last =
      std::min(first + static_cast<std::size_t>(end - padding), range.pitch) - 1;
  return "padding is read: bytes " + std::to_string(first) + " to " + std::to_string(last) +
         " of row " + std::to_string(place / range.pitch) + " of a tensor, whose rows have " +
         std::to_string(range.row_bytes) + " bytes";
}

bool is_local(const Thread& thread, const void* address, std::size_t bytes) {
  const char* const begin = static_cast<const char*>(address);
  return contains({thread.stack_begin, thread.stack_begin + Stack::kBytes}, begin, begin + bytes);
}

// The fault of an access to memory that is no thread's own, or "". `note` tells the detector of
// accesses to shared memory and to watched global memory, and returns the race that it finds.
template <typename Note>
std::string find_fault(Block& block, const char* begin, const char* end, Access access,
                       const Note& note) {
  const auto is_written = [&](const std::string& what) {
    return std::to_string(static_cast<std::size_t>(end - begin)) + " bytes of " + what +
           " are written";
  };
  Detector* const detector = block.cluster().detector();
  const auto find_global_race = [&]() -> std::string {
    return detector != nullptr && detector->watches(begin) ? note(*detector) : "";
  };
  const std::vector<Range>* const ranges = block.grid().arguments;
  if (ranges != nullptr) {
    if (const Range* const range = find(*ranges, begin, end, access)) {
      if (!range->is_writable && !is_read(access)) {
        return is_written("a tensor that may only be read");
      }
      const char* const padding = only_writes(access) ? nullptr : find_padding(*range, begin, end);
      return padding == nullptr ? find_global_race() : padding_is_read(*range, padding, end);
    }
  }
  const Kernel& kernel = block.grid().kernel;
  const char* const parameters = static_cast<const char*>(kernel.parameters);
  if (contains({parameters, parameters + kernel.bytes}, begin, end)) return "";
  if (Block* const owner = block.cluster().owner(begin, end)) {
    if (owner != &block && owner->live_threads() == 0) {
      return "the shared memory of a block that has ended: it leaves its cluster early";
    }
    bool is_tracked = true;
    const std::string fault = owner->shared().note(begin, end, access, is_tracked);
    if (!fault.empty()) return owner == &block ? fault : fault + ", in another block";
    if (!is_tracked) return "";
    if (owner->mbarriers().is_live(owner->shared().offset(begin), owner->shared().offset(end))) {
      return "an ordinary access to an mbarrier that is in use";
    }
    return detector == nullptr ? "" : note(*detector);
  }
  if (const Range* const range = find(image().segments, begin, end, access)) {
    if (range->is_writable || is_read(access)) return find_global_race();
    return is_written("a constant");
  }
  constexpr std::uintptr_t kNullPage = 4096;
  if (reinterpret_cast<std::uintptr_t>(begin) < kNullPage) return "a null pointer is used";
  if (ranges == nullptr) return find_global_race();
  return std::to_string(static_cast<std::size_t>(end - begin)) + " bytes out of bounds are " +
         (is_read(access) ? "read" : "written") + ", " + beside(*ranges, begin, end);
}

}  // namespace

void check(const void* address, std::size_t bytes, Access access, const Site& site, Scope scope) {
  Block* const block = current_block();
  if (block == nullptr || bytes == 0) return;  // host code
  const char* const begin = static_cast<const char*>(address);
  const char* const end = begin + bytes;
  block->tick(site);
  Thread& thread = block->thread();
  if (is_local(thread, address, bytes)) {
    if (thread.accumulators == nullptr) return;
    const std::string fault = thread.accumulators->note(begin, end, site);
    if (fault.empty()) return;
    block->fail(fault, site);
  }
  if (only_writes(access)) thread.looks = 0;
  const std::string fault = find_fault(*block, begin, end, access, [&](Detector& detector) {
    return detector.note(block->component(thread), begin, bytes, access, scope, site);
  });
  if (!fault.empty()) block->fail(fault, site);
}

std::string find_fault(Block& block, const Issue& issue, const Channel& channel,
                       const void* address, std::size_t bytes, Access access) {
#if defined(__SANITIZE_ADDRESS__)  // there, what threads have written is not known
  return "";
#else
  const char* const begin = static_cast<const char*>(address);
  return find_fault(block, begin, begin + bytes, access, [&](Detector& detector) {
    return detector.note(channel, issue, begin, bytes, access);
  });
#endif
}

namespace {

void check_volatile(const void* address, std::size_t bytes, Access access, const Site& site) {
  check(address, bytes, access, site);
  Block* const block = current_block();
  if (block == nullptr || is_local(block->thread(), address, bytes)) return;
  if (block->cluster().detector() != nullptr) {
    block->cluster().detector()->note_volatile(
        block->component(block->thread()),
        {address, access, Ordering::kRelaxed, Scope::kSystem, site});
  }
  if (access == Access::kStrongRead) {
    block->look(site);
  } else {
    note_change();
  }
}

}  // namespace

void check_look(const void* address, std::size_t bytes, const Site& site) {
  check_volatile(address, bytes, Access::kStrongRead, site);
}

void check_change(const void* address, std::size_t bytes, const Site& site) {
  check_volatile(address, bytes, Access::kStrongWrite, site);
}

bool begin_atomic(const void* address, std::size_t bytes, Access access, Scope scope, Place place) {
#if !defined(__SANITIZE_ADDRESS__)  // there, only these accesses would be known
  check(address, bytes, access, place, scope);
#endif
  Block* const block = current_block();
  if (block == nullptr || block->cluster().detector() == nullptr) return false;
  block->cluster().detector()->begin_atomic(address);
  return true;
}

void end_atomic(const void* address, Access access, Ordering ordering, Scope scope, Place place) {
  Block& block = *current_block();
  block.cluster().detector()->end_atomic(block.component(block.thread()),
                                         {address, access, ordering, scope, place});
}

void fence(Scope scope) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  Block* const block = current_block();
  if (block != nullptr && block->cluster().detector() != nullptr) {
    block->cluster().detector()->fence(block->component(block->thread()), scope);
  }
}

void touch(const void* address, std::size_t bytes, Access access, Place place) {
#if !defined(__SANITIZE_ADDRESS__)  // there, only these accesses would be known
  check(address, bytes, access, place);
#endif
}

}  // namespace diglot::interpreter
