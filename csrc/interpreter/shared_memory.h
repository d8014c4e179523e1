// A block's shared memory: where it lies, what has been written, and its 32-bit addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "interpreter/interpreter.h"

namespace diglot::interpreter {

// Of the OS thread that makes it, which runs the block.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t dynamic_bytes);

  bool contains(const char* begin, const char* end) const {
    return begin >= begin_ && end <= begin_ + bytes_ && begin <= end;
  }
  std::size_t bytes() const { return bytes_; }
  std::size_t offset(const char* address) const {
    return static_cast<std::size_t>(address - begin_);
  }
  char* pointer(std::size_t offset) const { return begin_ + offset; }

  // "byte 16 of `stages`", by the array's name in its kernel, or of dynamic shared memory.
  static std::string name_of(std::size_t offset);

  // 32-bit addresses, in which dynamic shared memory begins at 1024, and static follows it.
  std::uint32_t address(std::size_t offset) const;
  // Null if there is no such address.
  char* at(std::uint32_t address) const;

  // Notes an access. Returns the fault, or "". `is_tracked` is false where the compiler
  // keeps its own data.
  std::string note(const char* begin, const char* end, Access access, bool& is_tracked);

 private:
  std::string find_fault(std::size_t begin, std::size_t end, Access access, bool& is_tracked) const;

  char* begin_;
  std::size_t bytes_;
  std::size_t dynamic_bytes_;
  // A bit for each byte. It belongs to the OS thread, since a new one for each block takes time.
  std::vector<std::uint64_t>* written_;
};

}  // namespace diglot::interpreter
