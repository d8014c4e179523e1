#include "interpreter/races.h"

#include "interpreter/block.h"
#include "interpreter/symbols.h"

namespace diglot::interpreter {

std::string Site::text() const {
  if (place.file != nullptr) return std::string(place.file) + ":" + std::to_string(place.line);
  return code == nullptr ? "an unknown place" : source_line(code);
}

bool Races::is_unordered(const Touch& touch, const Thread& thread) const {
  if (touch.thread < 0 || touch.thread == thread.linear || touch.epoch != epoch_) return false;
  const int warp = thread.warp();
  return touch.thread / kWarp != warp || touch.warp_epoch == warp_epochs_[warp];
}

std::string Races::note(const Thread& thread, const void* address, std::size_t bytes, Access access,
                        const Site& site) {
  const char* const first = static_cast<const char*>(address);
  const bool atomic = access == Access::kAtomic;
  const Touch touch{thread.linear, epoch_, warp_epochs_[thread.warp()], atomic, site};
  const auto account = [&](const char* verb, const Touch& other, const char* other_verb) {
    return std::string("a race in shared memory: ") + verb + " what thread " +
           std::to_string(other.thread) + " of the block " + other_verb + " at " +
           other.site.text() + ", with no barrier between";
  };
  for (std::size_t i = 0; i < bytes; ++i) {
    Byte& byte = bytes_[first + i];
    const bool both_atomic = atomic && byte.write.atomic;
    if (is_unordered(byte.write, thread) && !both_atomic) {
      return account(access == Access::kRead ? "it reads" : "it writes", byte.write, "wrote");
    }
    if (access == Access::kRead) {
      Touch& slot =
          byte.reads[byte.reads[0].thread != thread.linear && is_unordered(byte.reads[0], thread)];
      slot = touch;
      continue;
    }
    for (const Touch& read : byte.reads) {
      if (is_unordered(read, thread)) return account("it writes", read, "read");
    }
    byte.write = touch;
  }
  return "";
}

}  // namespace diglot::interpreter
