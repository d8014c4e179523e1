// Arrays in host memory, or in maps of files, as the ring reads and writes them: by rows. Twin of
// python/diglot/pipeline/host.py, which opens the files.
#pragma once

#include <cstdint>
#include <vector>

namespace diglot::pipeline {

struct HostArray {
  bool is_output = false;
  bool is_new = false;  // the process's own memory, large, to which nothing was written yet
  int64_t row_bytes = 0;
  std::vector<char*> buffers;  // of each slot, on the device
  std::vector<char*> pinned;   // as many as chunks are under way; none where it is pinned itself
  char* address = nullptr;     // of the first row
  int file = -1;               // a descriptor, where memory is a map of a file
  int64_t offset = 0;          // of the first row there
  int64_t margin = 0;  // of room on a disk: with more, blocks are not asked for first, which
                       // one thread at a time may

  bool is_staged() const { return !pinned.empty(); }

  // Rows where they are, in memory.
  char* part(int64_t begin) const { return address + begin * row_bytes; }
  // Copies rows to a buffer. Throws std::system_error where a file cannot be read, and
  // std::runtime_error where it ends before.
  void read(int64_t begin, int64_t end, char* into) const;
  // Copies a buffer's rows to their place. Throws likewise, where a disk is full, or the file was
  // cut short.
  void write(int64_t begin, int64_t end, const char* source) const;
};

}  // namespace diglot::pipeline
