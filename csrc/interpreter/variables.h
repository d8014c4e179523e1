// The arrays that kernels have in static shared memory: this library's thread-local variables.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace diglot::interpreter {

struct Variable {
  std::size_t offset;  // in the thread-local segment
  std::size_t bytes;
  bool is_shared;  // and not what the compiler keeps beside an array, to construct it once
  std::string symbol;
};

// In the order of their offsets, without the interpreter's own; none where the library's symbols
// have been stripped.
std::vector<Variable> shared_variables();

}  // namespace diglot::interpreter
