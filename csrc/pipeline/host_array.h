// Arrays in host memory, or in maps of files, which the ring reads and writes by rows. Twin of
// python/diglot/pipeline/host.py, which opens the files.
#pragma once

#include <cstdint>
#include <vector>

namespace diglot::pipeline {

struct HostArray {
  bool is_output = false;
  bool is_new = false;  // a large result, whose pages may be missing
  int64_t row_bytes = 0;
  std::vector<char*> buffers;  // one on the device for each slot
  std::vector<char*> pinned;   // one for each chunk under way; empty if the array itself is pinned
  char* address = nullptr;     // of the first row
  int file = -1;               // a descriptor, if memory is a map of a file
  int64_t offset = 0;          // of the first row in the file
  int64_t margin = 0;  // of room on a disk: with more, blocks are not asked for first, which
                       // one thread at a time may

  bool is_staged() const { return !pinned.empty(); }

  // The address of a row.
  char* part(int64_t begin) const { return address + begin * row_bytes; }
  // Copies rows to a buffer. Throws std::system_error if a file cannot be read, and
  // std::runtime_error if it ends too early.
  void read(int64_t begin, int64_t end, char* into) const;
  // Copies a buffer's rows to their place. Throws the same errors if a disk is full, or the file
  // was cut short.
  void write(int64_t begin, int64_t end, const char* source) const;
};

}  // namespace diglot::pipeline
