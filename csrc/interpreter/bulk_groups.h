// The groups in which a thread waits for its bulk stores. PTX ISA, "cp.async.bulk.wait_group".
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace diglot::interpreter {

// Operations of a group that have yet to read their source, and to write their destination. An
// operation reads before it writes.
struct BulkGroup {
  int unread = 0;
  int unwritten = 0;
};

class BulkGroups {
 public:
  // Adds an operation to the group that is open.
  std::shared_ptr<BulkGroup> add();
  void commit();
  // Whether at most the latest `newer` groups are pending.
  bool are_over(std::size_t newer, bool only_read) const;
  // "1 of 3 groups pending, and 2 stores that are in none"
  std::string account(bool only_read) const;

 private:
  std::shared_ptr<BulkGroup> open_ = std::make_shared<BulkGroup>();
  int open_operations_ = 0;
  std::vector<std::shared_ptr<BulkGroup>> committed_;  // of which some are over
};

}  // namespace diglot::interpreter
