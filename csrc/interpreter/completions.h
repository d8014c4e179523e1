// Operations that signal an mbarrier once they have written their bytes.
#pragma once

#include <cstdint>
#include <string>

#include "interpreter/target.h"

namespace diglot::interpreter {

// Counts bytes that an operation has written to the barrier's block. Returns what is wrong, or "".
std::string complete_bytes(const Target& barrier, std::uint32_t bytes, const Issue& issue);

}  // namespace diglot::interpreter
