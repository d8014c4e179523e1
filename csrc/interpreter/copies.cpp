#include "interpreter/copies.h"

#include <cstring>
#include <utility>

#include "interpreter/block.h"
#include "interpreter/memory.h"

namespace diglot::interpreter {

void AsyncCopies::copy(Block& block, const Copy& copy, std::uint32_t group) {
  const Channel channel{component_, group + 1};
  std::string fault = find_fault(block, copy.issue, channel, copy.from, copy.bytes, Access::kRead);
  if (fault.empty()) {
    fault = find_fault(block, copy.issue, channel, copy.to, copy.bytes, Access::kWrite);
  }
  if (!fault.empty()) block.fail(fault, copy.issue.site);
  std::memcpy(copy.to, copy.from, copy.bytes);
}

void AsyncCopies::issue(Block& block, void* to, const void* from, std::size_t bytes, Place place) {
  if (component_ < 0) component_ = block.add_channel();
  Copy issued{to, from, bytes, Issue("cp.async", place), block.random() % 2 == 0};
  block.sign(issued.issue);
  issued.issue.is_in_async_proxy = false;
  if (issued.is_done) copy(block, issued, done_ + static_cast<std::uint32_t>(groups_.size()));
  open_.push_back(std::move(issued));
}

void AsyncCopies::commit() {
  groups_.push_back(std::move(open_));
  open_.clear();
}

void AsyncCopies::wait(Block& block, std::size_t newer) {
  while (groups_.size() > newer) {
    const std::vector<Copy> group = std::move(groups_.front());
    groups_.pop_front();
    for (const Copy& copied : group) {
      if (!copied.is_done) copy(block, copied, done_);
    }
    block.acquire(Channel{component_, ++done_});
  }
}

}  // namespace diglot::interpreter
