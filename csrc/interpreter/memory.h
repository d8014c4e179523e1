// Checks of a kernel's accesses to memory.
#pragma once

#include <cstddef>

#include "interpreter/async.h"
#include "interpreter/interpreter.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

class Block;

// Checks an access; in host code it does nothing. A fault ends the kernel.
void check(const void* address, std::size_t bytes, Access access, const Site& site);
// The same for a volatile access. A read looks whether memory has changed; a write changes it.
void check_look(const void* address, std::size_t bytes, const Site& site);
void check_change(const void* address, std::size_t bytes, const Site& site);

// Checks an access that an asynchronous operation of a block's makes. False after a fault.
bool check_operation(Block& block, const Operation& operation, const void* address,
                     std::size_t bytes, Access access);

}  // namespace diglot::interpreter
