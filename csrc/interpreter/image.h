// This library in memory: its code and constants, and each OS thread's copy of its thread-local
// variables, which is where `__shared__` puts arrays.
#pragma once

#include <vector>

#include "interpreter/interpreter.h"
#include "interpreter/variables.h"

namespace diglot::interpreter {

struct Image {
  std::vector<Range> segments;
  Range thread_locals{};                             // of this OS thread
  const std::vector<Variable>* variables = nullptr;  // of those, if the library names them
};

// As this OS thread sees it.
const Image& image();

inline bool contains(const Range& range, const char* begin, const char* end) {
  return begin >= range.begin && end <= range.end && begin <= end;
}

// The first byte of an access that is padding of the range, or null.
inline const char* find_padding(const Range& range, const char* begin, const char* end) {
  if (range.row_bytes == range.pitch) return nullptr;
  const std::size_t in_row = static_cast<std::size_t>(begin - range.begin) % range.pitch;
  const char* const padding = in_row < range.row_bytes ? begin + (range.row_bytes - in_row) : begin;
  return padding < end ? padding : nullptr;
}

// The range that holds all of an access and admits it, or one that only holds it, or null.
const Range* find(const std::vector<Range>& ranges, const char* begin, const char* end,
                  Access access);

}  // namespace diglot::interpreter
