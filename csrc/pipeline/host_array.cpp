#include "pipeline/host_array.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>

namespace diglot::pipeline {

namespace {

constexpr int64_t kReadAhead = int64_t{64} << 20;

[[noreturn]] void fail(const char* what, int64_t offset, int error) {
  throw std::runtime_error(std::string(what) + " at byte " + std::to_string(offset) + ": " +
                           std::generic_category().message(error));
}

void read_file(int file, int64_t offset, char* into, int64_t size) {
  while (size > 0) {
    const ssize_t count = pread(file, into, static_cast<std::size_t>(size), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("reading a file", offset, errno);
    if (count == 0) {
      throw std::runtime_error("reading a file at byte " + std::to_string(offset) +
                               ": the file ended, it was cut short");
    }
    into += count;
    offset += count;
    size -= count;
  }
}

void write_file(int file, int64_t offset, const char* source, int64_t size) {
  while (size > 0) {
    const ssize_t count = pwrite(file, source, static_cast<std::size_t>(size), offset);
    if (count < 0 && errno == EINTR) continue;
    // Nothing written, and no reason given, would be so for ever.
    if (count <= 0) fail("writing a file", offset, count < 0 ? errno : EIO);
    source += count;
    offset += count;
    size -= count;
  }
}

}  // namespace

void HostArray::read(int64_t begin, int64_t end, char* into, Copiers& threads) const {
  const int64_t size = (end - begin) * row_bytes;
  if (kind == Kind::kMemory) {
    const char* const from = part(begin);
    threads.each(size, [&](int64_t first, int64_t count) {
      std::memcpy(into + first, from + first, static_cast<std::size_t>(count));
    });
    return;
  }
  const int64_t at = offset + begin * row_bytes;
  static_cast<void>(posix_fadvise(file, at + size, kReadAhead, POSIX_FADV_WILLNEED));
  threads.each(size, [&](int64_t first, int64_t count) {
    read_file(file, at + first, into + first, count);
  });
}

void HostArray::write(int64_t begin, int64_t end, const char* source, Copiers& threads) const {
  const int64_t size = (end - begin) * row_bytes;
  if (kind == Kind::kMemory) {
    char* const to = part(begin);
    threads.each(size, [&](int64_t first, int64_t count) {
      std::memcpy(to + first, source + first, static_cast<std::size_t>(count));
    });
    return;
  }
  const int64_t at = offset + begin * row_bytes;
  threads.each(size, [&](int64_t first, int64_t count) {
    write_file(file, at + first, source + first, count);
  });
}

}  // namespace diglot::pipeline
