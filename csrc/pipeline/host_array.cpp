#include "pipeline/host_array.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>

namespace diglot::pipeline {

namespace {

constexpr int64_t kReadAhead = int64_t{64} << 20;
constexpr int64_t kLargePage = int64_t{2} << 20;

[[noreturn]] void fail(const char* what, int64_t offset, int error) {
  throw std::system_error(error, std::generic_category(),
                          std::string(what) + " at byte " + std::to_string(offset));
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

// Throws if the disk has no room. Writing to a map would then raise a signal.
void make_room(int file, int64_t offset, int64_t size, int64_t margin) {
  struct statvfs room = {};
  if (fstatvfs(file, &room) == 0 &&
      static_cast<int64_t>(room.f_bavail * room.f_frsize) >= size + margin) {
    return;
  }
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(file, offset, size);
  if (error != 0) fail("writing a file", offset, error);
}

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

// Makes the system prepare pages for writing, all at once. One fault after the other takes longer,
// for a file several times. False if writing the pages would raise a signal.
bool make_ready(char* address, int64_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(address);
  const uintptr_t begin = first / page * page;
  const uintptr_t end = first + static_cast<uintptr_t>(size);
  int status = -1;
  do {
    status = madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  } while (status != 0 && (errno == EINTR || errno == EAGAIN));
  // Other errors: the system is older than Linux 5.14, or short of memory. Faults then do the work.
  return status == 0 || errno != EFAULT;
}

// How many of some new bytes are made ready at a time: those of one large page.
int64_t piece_of_new(const char* address, int64_t size) {
  const auto page = static_cast<uintptr_t>(kLargePage);
  return std::min(size, static_cast<int64_t>(page - reinterpret_cast<uintptr_t>(address) % page));
}

// Makes pages of new memory ready. Linux clears a large page from both ends towards the touched
// byte. So the last byte is touched: some processors clear upwards in less than half the time
// (docs/pipeline.md).
void make_new_ready(char* address, int64_t size) {
  address[size - 1] = 0;
  make_ready(address, size);  // where pages are small
}

// Takes a file's pages out of the process's memory; the system writes them back later.
void leave_to_system(char* address, int64_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(address);
  const uintptr_t begin = (first + page - 1) / page * page;
  const uintptr_t end = (first + static_cast<uintptr_t>(size)) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

void HostArray::read(int64_t begin, int64_t end, char* into) const {
  const int64_t size = (end - begin) * row_bytes;
  if (file < 0) {
    std::memcpy(into, part(begin), static_cast<std::size_t>(size));
  } else {
    const int64_t position = offset + begin * row_bytes;
    static_cast<void>(posix_fadvise(file, position + size, kReadAhead, POSIX_FADV_WILLNEED));
    read_file(file, position, into, size);
  }
}

void HostArray::write(int64_t begin, int64_t end, const char* source) const {
  const int64_t size = (end - begin) * row_bytes;
  if (file >= 0 && size > 0) {
    // A file takes one write at a time, but its map takes one from each thread.
    const int64_t position = offset + begin * row_bytes;
    make_room(file, position, size, margin);
    if (!make_ready(part(begin), size)) {
      throw std::runtime_error("writing a file at byte " + std::to_string(position) +
                               ": the disk is full, or the file was cut short");
    }
  }
  char* const to = part(begin);
  for (int64_t done = 0, bytes = 0; done < size; done += bytes) {
    bytes = size - done;
    if (is_new) {  // a page at a time is written while the processor's cache has it
      bytes = piece_of_new(to + done, bytes);
      make_new_ready(to + done, bytes);
    }
    std::memcpy(to + done, source + done, static_cast<std::size_t>(bytes));
  }
  if (file >= 0) leave_to_system(to, size);
}

}  // namespace diglot::pipeline
