#include "interpreter/bulk_groups.h"

#include <algorithm>
#include <utility>

namespace diglot::interpreter {

namespace {

bool is_pending(const BulkGroup& group, bool only_read) {
  return (only_read ? group.unread : group.unwritten) > 0;
}

}  // namespace

std::shared_ptr<BulkGroup> BulkGroups::add() {
  ++open_->unread;
  ++open_->unwritten;
  ++open_operations_;
  return open_;
}

void BulkGroups::commit() {
  // Groups before the first that is pending are over in every sense.
  const auto first = std::find_if(committed_.begin(), committed_.end(),
                                  [](const auto& group) { return is_pending(*group, false); });
  committed_.erase(committed_.begin(), first);
  const std::uint32_t next = open_->number + 1;
  committed_.push_back(std::exchange(open_, std::make_shared<BulkGroup>()));
  open_->number = next;
  open_operations_ = 0;
}

std::uint32_t BulkGroups::last_over(std::size_t newer) const {
  const auto committed = open_->number - 1;
  return newer < committed ? committed - static_cast<std::uint32_t>(newer) : 0;
}

bool BulkGroups::are_over(std::size_t newer, bool only_read) const {
  for (std::size_t i = 0; i + newer < committed_.size(); ++i) {
    if (is_pending(*committed_[i], only_read)) return false;
  }
  return true;
}

std::string BulkGroups::account(bool only_read) const {
  const auto pending =
      std::count_if(committed_.begin(), committed_.end(),
                    [only_read](const auto& group) { return is_pending(*group, only_read); });
  return std::to_string(pending) + " of its bulk groups are pending, and " +
         std::to_string(open_operations_) + " operations are in no group";
}

}  // namespace diglot::interpreter
