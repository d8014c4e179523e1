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
    Site site;                  // of the load
    std::uint32_t plane_bytes;  // of the box's first two dimensions
  };

  // A load has written bytes: those of its box from `place` on, as the tensor orders them.
  void write(const std::shared_ptr<const Box>& box, std::uint32_t place, const char* to,
             std::size_t bytes);
  // Something else has written bytes.
  void overwrite(const void* to, std::size_t bytes);

  // Whether a descriptor's chunks, as `chunk_addresses` orders them, are in the order of their
  // tiles. From each row to the next it must be equally far in the box. So it must be from each
  // chunk of a row to the next. Chunks of two boxes are not compared. Returns the fault, or "".
  std::string find_fault(const std::vector<const char*>& chunks, const MatrixDescriptor& descriptor,
                         Major major, int extent) const;

 private:
  struct Chunk {
    std::shared_ptr<const Box> box;
    std::uint32_t place;  // of its first byte in the box
  };

  const Chunk* find(const char* chunk) const;

  std::unordered_map<std::uintptr_t, Chunk> chunks_;  // by number of 16 bytes
};

}  // namespace diglot::interpreter
