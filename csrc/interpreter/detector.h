// What is known of races among the threads of a cluster, or of a block that is in none. Only one of
// its blocks runs at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "interpreter/order.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

// What tells of the completion of asynchronous operations, and how far it has come.
struct Channel {
  int component = 0;
  std::uint32_t epoch = 0;
};

class Detector {
 public:
  Detector(int blocks, int block_threads, std::uint32_t group);

  // A block's shared memory, before any thread of the cluster uses it.
  void add_block(const char* shared, std::size_t bytes);
  // All threads of the block have ended. Accounts for who still uses its shared memory, or "".
  std::string end_block(int rank, const char* shared);

  // Notes a thread's access to shared memory. Returns an account of the fault, or "".
  std::string note(int thread, const void* address, std::size_t bytes, Access access,
                   const Site& site);
  std::string note(const Actor& actor, const void* address, std::size_t bytes, Access access,
                   const Site& site) {
    return races_.note(actor, address, bytes, access, site);
  }

  // Barriers, of threads by their component: of a block, of lanes.
  void meet_block(int rank);
  void meet_lanes(int first, std::uint32_t lanes);

  Order& order() { return order_; }

 private:
  int block_threads_;
  Order order_;
  Races races_;
};

}  // namespace diglot::interpreter
