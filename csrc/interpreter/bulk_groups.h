// The groups in which a thread waits for its bulk stores. PTX ISA, "cp.async.bulk.wait_group".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace diglot::interpreter {

// Operations of a group that have yet to read their source, and to write their destination. An
// operation reads before it writes.
struct BulkGroup {
  std::uint32_t number = 1;  // among the thread's groups
  int unread = 0;
  int unwritten = 0;
};

class BulkGroups {
 public:
  // Adds an operation to the group that is open.
  std::shared_ptr<BulkGroup> add();
  void commit();
  // The number of the last group that is over, if all but the latest `newer` are.
  std::uint32_t last_over(std::size_t newer) const;
  // Whether at most the latest `newer` groups are pending.
  bool are_over(std::size_t newer, bool only_read) const;
  // "1 of its bulk groups are pending, and 2 operations are in no group"
  std::string account(bool only_read) const;

  // Components of the channels that tell of reads and of writes, if races are looked for.
  int read_component = -1, write_component = -1;

 private:
  std::shared_ptr<BulkGroup> open_ = std::make_shared<BulkGroup>();
  int open_operations_ = 0;
  std::vector<std::shared_ptr<BulkGroup>> committed_;  // some may be over
};

}  // namespace diglot::interpreter
