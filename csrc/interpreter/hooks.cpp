// The functions that the compiler calls in a kernel: for every access to memory (-fsanitize=thread)
// and for what its other sanitizers find. They stand in for its own run-time libraries.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "interpreter/block.h"
#include "interpreter/memory.h"

using diglot::Place;
using diglot::interpreter::Access;
using diglot::interpreter::check;
using diglot::interpreter::check_change;
using diglot::interpreter::check_look;
using diglot::interpreter::current_block;
using diglot::interpreter::Site;

#define DIGLOT_HOOK extern "C" __attribute__((visibility("hidden"))) void
#define DIGLOT_ACCESS(BYTES)                                                  \
  DIGLOT_HOOK __tsan_read##BYTES(void* address) {                             \
    check(address, BYTES, Access::kRead, Site(__builtin_return_address(0)));  \
  }                                                                           \
  DIGLOT_HOOK __tsan_write##BYTES(void* address) {                            \
    check(address, BYTES, Access::kWrite, Site(__builtin_return_address(0))); \
  }                                                                           \
  DIGLOT_HOOK __tsan_unaligned_read##BYTES(void* address) {                   \
    check(address, BYTES, Access::kRead, Site(__builtin_return_address(0)));  \
  }                                                                           \
  DIGLOT_HOOK __tsan_unaligned_write##BYTES(void* address) {                  \
    check(address, BYTES, Access::kWrite, Site(__builtin_return_address(0))); \
  }                                                                           \
  DIGLOT_HOOK __tsan_volatile_read##BYTES(void* address) {                    \
    check_look(address, BYTES, Site(__builtin_return_address(0)));            \
  }                                                                           \
  DIGLOT_HOOK __tsan_volatile_write##BYTES(void* address) {                   \
    check_change(address, BYTES, Site(__builtin_return_address(0)));          \
  }                                                                           \
  DIGLOT_HOOK __tsan_unaligned_volatile_read##BYTES(void* address) {          \
    check_look(address, BYTES, Site(__builtin_return_address(0)));            \
  }                                                                           \
  DIGLOT_HOOK __tsan_unaligned_volatile_write##BYTES(void* address) {         \
    check_change(address, BYTES, Site(__builtin_return_address(0)));          \
  }
DIGLOT_ACCESS(1)
DIGLOT_ACCESS(2)
DIGLOT_ACCESS(4)
DIGLOT_ACCESS(8)
DIGLOT_ACCESS(16)
#undef DIGLOT_ACCESS

DIGLOT_HOOK __tsan_read_range(void* address, unsigned long bytes) {
  check(address, bytes, Access::kRead, Site(__builtin_return_address(0)));
}
DIGLOT_HOOK __tsan_write_range(void* address, unsigned long bytes) {
  check(address, bytes, Access::kWrite, Site(__builtin_return_address(0)));
}

// build.py has kernels call these instead of the C library's.
extern "C" __attribute__((visibility("hidden"))) void* diglot_memcpy(void* to, const void* from,
                                                                     std::size_t bytes) {
  const Site site(__builtin_return_address(0));
  check(from, bytes, Access::kRead, site);
  check(to, bytes, Access::kWrite, site);
  return std::memcpy(to, from, bytes);
}
extern "C" __attribute__((visibility("hidden"))) void* diglot_memmove(void* to, const void* from,
                                                                      std::size_t bytes) {
  const Site site(__builtin_return_address(0));
  check(from, bytes, Access::kRead, site);
  check(to, bytes, Access::kWrite, site);
  return std::memmove(to, from, bytes);
}
extern "C" __attribute__((visibility("hidden"))) void* diglot_memset(void* to, int value,
                                                                     std::size_t bytes) {
  check(to, bytes, Access::kWrite, Site(__builtin_return_address(0)));
  return std::memset(to, value, bytes);
}

// What the compiler makes of std::atomic and its kin, in host code of a kernel's file.
#define DIGLOT_UPDATE(BITS, TYPE, NAME)                                                     \
  DIGLOT_HOOK_OF(TYPE) __tsan_atomic##BITS##_##NAME(volatile TYPE* word, TYPE value, int) { \
    return __atomic_##NAME(word, value, __ATOMIC_SEQ_CST);                                  \
  }
#define DIGLOT_HOOK_OF(TYPE) extern "C" __attribute__((visibility("hidden"))) TYPE
#define DIGLOT_ATOMIC(BITS)                                                                      \
  using Bits##BITS = std::uint##BITS##_t;                                                        \
  DIGLOT_HOOK_OF(Bits##BITS) __tsan_atomic##BITS##_load(const volatile Bits##BITS* word, int) {  \
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);                                              \
  }                                                                                              \
  DIGLOT_HOOK __tsan_atomic##BITS##_store(volatile Bits##BITS* word, Bits##BITS value, int) {    \
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                              \
  DIGLOT_HOOK_OF(Bits##BITS)                                                                     \
  __tsan_atomic##BITS##_exchange(volatile Bits##BITS* word, Bits##BITS value, int) {             \
    return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);                                   \
  }                                                                                              \
  DIGLOT_HOOK_OF(bool)                                                                           \
  __tsan_atomic##BITS##_compare_exchange_strong(volatile Bits##BITS* word, Bits##BITS* expected, \
                                                Bits##BITS value, int, int) {                    \
    return __atomic_compare_exchange_n(word, expected, value, false, __ATOMIC_SEQ_CST,           \
                                       __ATOMIC_SEQ_CST);                                        \
  }                                                                                              \
  DIGLOT_HOOK_OF(bool)                                                                           \
  __tsan_atomic##BITS##_compare_exchange_weak(volatile Bits##BITS* word, Bits##BITS* expected,   \
                                              Bits##BITS value, int, int) {                      \
    return __atomic_compare_exchange_n(word, expected, value, false, __ATOMIC_SEQ_CST,           \
                                       __ATOMIC_SEQ_CST);                                        \
  }                                                                                              \
  DIGLOT_UPDATE(BITS, Bits##BITS, fetch_add)                                                     \
  DIGLOT_UPDATE(BITS, Bits##BITS, fetch_sub)                                                     \
  DIGLOT_UPDATE(BITS, Bits##BITS, fetch_and)                                                     \
  DIGLOT_UPDATE(BITS, Bits##BITS, fetch_or)                                                      \
  DIGLOT_UPDATE(BITS, Bits##BITS, fetch_xor)
DIGLOT_ATOMIC(8)
DIGLOT_ATOMIC(16)
DIGLOT_ATOMIC(32)
DIGLOT_ATOMIC(64)
#undef DIGLOT_ATOMIC
#undef DIGLOT_UPDATE
DIGLOT_HOOK __tsan_atomic_thread_fence(int) {
  diglot::interpreter::fence(diglot::interpreter::Scope::kSystem);
}
DIGLOT_HOOK __tsan_atomic_signal_fence(int) {}

DIGLOT_HOOK __tsan_vptr_update(void**, void*) {}
DIGLOT_HOOK __tsan_vptr_read(void**) {}
DIGLOT_HOOK __tsan_func_entry(void*) {}
DIGLOT_HOOK __tsan_func_exit() {}
DIGLOT_HOOK __tsan_init() {}

// What -fsanitize=alignment,bounds,integer-divide-by-zero calls, with what its libraries are given.
namespace {

struct SourceLocation {
  const char* file;
  std::uint32_t line, column;
};
struct TypeDescriptor {
  std::uint16_t kind, info;
  char name[1];
};
struct OutOfBounds {
  SourceLocation location;
  const TypeDescriptor* array;
  const TypeDescriptor* index;
};
struct TypeMismatch {
  SourceLocation location;
  const TypeDescriptor* type;
  unsigned char log_alignment, kind;
};
struct Overflow {
  SourceLocation location;
  const TypeDescriptor* type;
};

[[noreturn]] void sanitizer_fault(const std::string& what, const SourceLocation& location) {
  if (current_block() != nullptr) {
    current_block()->fail(what, Place{location.file, static_cast<int>(location.line)});
  }
  throw std::logic_error(what + ", at " + location.file + ":" + std::to_string(location.line));
}

}  // namespace

#define DIGLOT_FINDING extern "C" __attribute__((visibility("hidden"), noreturn)) void

DIGLOT_FINDING __ubsan_handle_out_of_bounds_abort(OutOfBounds* data, std::uintptr_t index) {
  sanitizer_fault("index " + std::to_string(static_cast<std::intptr_t>(index)) +
                      " out of bounds of an array of type " + data->array->name,
                  data->location);
}
DIGLOT_FINDING __ubsan_handle_type_mismatch_v1_abort(TypeMismatch* data, std::uintptr_t address) {
  if (address == 0) sanitizer_fault("a null pointer is used", data->location);
  sanitizer_fault("a misaligned access: address " + std::to_string(address) +
                      " is no multiple of " + std::to_string(1u << data->log_alignment) +
                      " bytes, as type " + data->type->name + " needs",
                  data->location);
}
DIGLOT_FINDING __ubsan_handle_divrem_overflow_abort(Overflow* data, std::uintptr_t,
                                                    std::uintptr_t) {
  sanitizer_fault("an integer division by zero, or of the least integer by -1", data->location);
}

// `assert` of the C library.
extern "C" __attribute__((visibility("hidden"), noreturn)) void __assert_fail(
    const char* expression, const char* file, unsigned line, const char* function) noexcept {
  if (current_block() == nullptr) {
    std::fprintf(stderr, "%s:%u: %s: assertion '%s' failed\n", file, line, function, expression);
    std::abort();
  }
  current_block()->fail(std::string("assertion '") + expression + "' failed",
                        Place{file, static_cast<int>(line)});
}
