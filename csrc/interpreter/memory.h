// Checks of a kernel's accesses to memory.
#pragma once

#include <cstddef>

#include "interpreter/async_queue.h"
#include "interpreter/interpreter.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

class Block;

// Checks an access; in host code it does nothing. A fault ends the kernel.
void check(const void* address, std::size_t bytes, Access access, const Site& site,
           Scope scope = Scope::kSystem);
// The same for a volatile access. A read looks whether memory has changed; a write changes it.
void check_look(const void* address, std::size_t bytes, const Site& site);
void check_change(const void* address, std::size_t bytes, const Site& site);

// Checks an asynchronous access to shared or global memory. A block has issued it, and the channel
// tells of its completion. Returns the fault, or "".
std::string find_fault(Block& block, const Issue& issue, const Channel& channel,
                       const void* address, std::size_t bytes, Access access);

}  // namespace diglot::interpreter
