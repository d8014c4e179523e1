#include "interpreter/completions.h"

namespace diglot::interpreter {

std::string complete_bytes(const Target& barrier, std::uint32_t bytes, const Issue& issue) {
  Block& block = *barrier.block;
  Mbarriers& barriers = block.mbarriers();
  const Channel channel = barriers.channel(barrier.offset);
  Detector* const detector = block.cluster().detector();
  if (detector != nullptr && channel.component >= 0) {
    // The init must happen before the operation is issued. Its visibility to the async proxy is
    // another rule, which the issue has checked.
    Issue use = issue;
    use.is_in_async_proxy = false;
    const std::string fault =
        detector->note(channel, use, barrier.pointer(), kMbarrierBytes, Access::kAtomic);
    if (!fault.empty()) return fault;
  }
  return barriers.complete(barrier.offset, bytes, block.completed(issue, channel));
}

}  // namespace diglot::interpreter
