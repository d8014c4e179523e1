// What is known of races among the threads of a cluster, or of a block that is in none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "interpreter/order.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

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

  // Barriers, of threads by their component: of a block, of lanes, of the cluster.
  void meet_block(int rank);
  void meet_lanes(int first, std::uint32_t lanes);
  void meet_cluster();

 private:
  std::unique_lock<std::mutex> lock();

  // Blocks of a cluster run on several OS threads.
  std::mutex mutex_;
  int block_threads_;
  Order order_;
  Races races_;
};

}  // namespace diglot::interpreter
