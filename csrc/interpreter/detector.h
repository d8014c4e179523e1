// What is known of races among the threads of a cluster, or of a block that is in none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "interpreter/flags.h"
#include "interpreter/order.h"
#include "interpreter/races.h"
#include "interpreter/watch.h"

namespace diglot::interpreter {

// A strong access: atomic or volatile.
struct Strong {
  const void* word;
  Access access;
  Ordering ordering;
  Scope scope;
  Site site;
};

// Threads are told by their component: rank of the block * threads of a block + linear index.
class Detector {
 public:
  Detector(const Launched& launched, std::uint32_t cluster);

  // A block's shared memory, before any thread of the cluster uses it.
  void add_block(const char* shared, std::size_t bytes);
  // All threads of the block have ended. Accounts for who still uses its shared memory, or "".
  std::string end_block(int rank, const char* shared);

  // Notes a thread's access to shared memory, or to watched global memory. Returns an account of
  // the fault, or "".
  std::string note(int thread, const void* address, std::size_t bytes, Access access, Scope scope,
                   const Site& site);

  // Barriers: of a block, of lanes of a warp, of the cluster.
  void meet_block(int rank);
  void meet_lanes(int first, std::uint32_t lanes);
  void meet_cluster();

  // Atomic operations: between the two the word is this thread's.
  void begin_atomic(const void* word);
  void end_atomic(int thread, const Strong& strong);
  // A volatile access, before it is made.
  void note_volatile(int thread, const Strong& strong);
  void fence(int thread, Scope scope);

  bool watches(const void* address) const { return launched_.watches(address); }

 private:
  // Blocks of a cluster run on several OS threads, as do those of a grid.
  std::unique_lock<std::mutex> lock();
  Flags& flags_of(const void* word);
  Party party(int thread) const { return {order_.of(thread).group(), thread / block_threads_}; }
  void acquire(int thread, const Strong& strong);
  void release(int thread, const Strong& strong);

  const Launched& launched_;
  std::mutex mutex_;
  int block_threads_;
  Order order_;
  Races races_;
  Flags flags_;
  std::unordered_map<int, Fences> fences_;  // by thread
};

}  // namespace diglot::interpreter
