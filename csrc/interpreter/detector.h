// Finds races among the threads of a cluster, or of a block without one. Only one of the cluster's
// blocks runs at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "interpreter/flags.h"
#include "interpreter/global_memory.h"
#include "interpreter/order.h"
#include "interpreter/races.h"
#include "interpreter/tiles.h"

namespace diglot::interpreter {

struct Issue;

// Tells of the completion of asynchronous operations, up to an epoch.
struct Channel {
  int component = -1;  // none
  std::uint32_t epoch = 0;
};

// A strong access: atomic or volatile.
struct Strong {
  const void* word;
  Access access;
  Ordering ordering;
  Scope scope;
  Site site;
};

// A thread is named by its component: rank of the block * threads of a block + linear index.
class Detector {
 public:
  Detector(const Launched& launched, std::uint32_t cluster);

  // A block's shared memory, before any thread of the cluster uses it.
  void add_block(const char* shared, std::size_t bytes);
  // All threads of the block have ended. Returns an account of who still uses its shared memory, or
  // "".
  std::string end_block(int rank, const char* shared);

  // Notes a thread's access to shared memory, or to watched global memory. Returns an account of
  // the fault, or "".
  std::string note(int thread, const void* address, std::size_t bytes, Access access, Scope scope,
                   const Site& site);

  // The same for an asynchronous operation.
  std::string note(const Channel& channel, const Issue& issue, const void* address,
                   std::size_t bytes, Access access);

  // Barriers: of a block, of lanes of a warp.
  void meet_block(int rank);
  void meet_lanes(int first, std::uint32_t lanes);

  // Around an atomic operation: between the two calls no other thread accesses the word.
  void begin_atomic(const void* word);
  void end_atomic(int thread, const Strong& strong);
  // A volatile access, before it is made.
  void note_volatile(int thread, const Strong& strong);
  void fence(int thread, Scope scope);

  Order& order() { return order_; }
  Tiles& tiles() { return tiles_; }
  bool watches(const void* address) const { return launched_.watches(address); }

 private:
  std::string note(const Actor& actor, const void* address, std::size_t bytes, Access access,
                   Scope scope, const Site& site);
  Flags& flags_of(const void* word);
  Party party(int thread) const { return {order_.of(thread).group(), thread / block_threads_}; }
  void acquire(int thread, const Strong& strong);
  void release(int thread, const Strong& strong);

  const Launched& launched_;
  int block_threads_;
  Order order_;
  Races races_;
  Tiles tiles_;
  Flags flags_;
  std::unordered_map<int, Fences> fences_;  // by thread
};

}  // namespace diglot::interpreter
