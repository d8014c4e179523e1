// How the tiles that bulk tensor loads have written lie in shared memory. A matrix descriptor that
// reads a tile in another order, by a wrong swizzle, stride or leading offset, is found by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "interpreter/products.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

class Tiles {
 public:
  // What one load has written.
  struct Box {
    Site site;  // of the load
  };
  // Where the first of some bytes lies in the box, as the tensor orders it, and in global memory.
  struct Origin {
    std::shared_ptr<const Box> box;
    std::uint64_t in_box;
    std::uint64_t global;
  };

  // A load has written bytes, from that place on.
  void write(const Origin& from, const char* to, std::size_t bytes);
  // Something else has written bytes.
  void overwrite(const void* to, std::size_t bytes);

  // Whether a descriptor's chunks, as `chunk_addresses` orders them, are in the order of their
  // tiles. From each row to the next it must be equally far, in the box or in global memory. So it
  // must be from each chunk of a row to the next. Chunks of two boxes are not compared. Returns the
  // fault, or "".
  std::string find_fault(const std::vector<const char*>& chunks, Major major, int extent) const;

 private:
  const Origin* find(const char* chunk) const;

  std::unordered_map<std::uintptr_t, Origin> chunks_;  // by number of 16 bytes
};

}  // namespace diglot::interpreter
