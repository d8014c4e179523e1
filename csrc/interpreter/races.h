// Who touched which byte of shared memory since the last barrier.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "interpreter/interpreter.h"

namespace diglot::interpreter {

struct Thread;

// Where an access was made: a return address, or a place of the source.
struct Site {
  const void* code = nullptr;
  Place place;

  bool operator==(const Site& other) const { return code == other.code && place == other.place; }
  std::string text() const;
};

class Races {
 public:
  explicit Races(int warps) : warp_epochs_(warps, 0) {}

  // Orders what all threads of the block did before with what they do after.
  void block_barrier() { ++epoch_; }
  // The same for a warp.
  void warp_barrier(int warp) { ++warp_epochs_[warp]; }

  // Notes an access to shared memory. Returns an account of the race that it makes, or "".
  std::string note(const Thread& thread, const void* address, std::size_t bytes, Access access,
                   const Site& site);

 private:
  struct Touch {
    int thread = -1;
    std::uint32_t epoch = 0;
    std::uint32_t warp_epoch = 0;
    bool atomic = false;
    Site site;
  };
  struct Byte {
    Touch write;
    Touch reads[2];  // by different threads
  };

  bool is_unordered(const Touch& touch, const Thread& thread) const;

  std::uint32_t epoch_ = 1;
  std::vector<std::uint32_t> warp_epochs_;
  std::unordered_map<const char*, Byte> bytes_;
};

}  // namespace diglot::interpreter
