// From an address in the code to a line of its source.
#pragma once

#include <string>

namespace diglot::interpreter {

// "file:line" of a return address, or as much as is known. Takes milliseconds the first time.
std::string source_line(const void* return_address);

}  // namespace diglot::interpreter
