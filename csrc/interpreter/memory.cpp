// What the compiler reports of a kernel: every access to memory (-fsanitize=thread), and what its
// other sanitizers find. The functions that it calls for this are defined here instead of in its
// own run-time libraries.
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "interpreter/block.h"
#include "interpreter/interpreter.h"
#include "interpreter/symbols.h"

// Dynamic shared memory: kMaxSharedBytes, which build.py defines under this and under the names
// that kernels give it.
extern "C" __attribute__((visibility("hidden"))) thread_local char diglot_dynamic_shared[];

namespace diglot::interpreter {

namespace {

// This library's code and constants, and this OS thread's copy of its thread-local variables, which
// is where `__shared__` puts arrays.
struct Module {
  Range image{};
  Range shared{};
};

int describe_module(dl_phdr_info* info, std::size_t, void* result) {
  const auto own = reinterpret_cast<std::uintptr_t>(&describe_module);
  Range image{reinterpret_cast<const char*>(UINTPTR_MAX), nullptr};
  const ElfW(Phdr)* thread_local_segment = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_TLS) thread_local_segment = &segment;
    if (segment.p_type != PT_LOAD) continue;
    const char* const begin = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    image.begin = std::min(image.begin, begin);
    image.end = std::max(image.end, begin + segment.p_memsz);
  }
  const char* const address = reinterpret_cast<const char*>(own);
  if (address < image.begin || address >= image.end) return 0;
  auto* const module = static_cast<Module*>(result);
  module->image = image;
  if (thread_local_segment != nullptr && info->dlpi_tls_data != nullptr) {
    const char* const begin = static_cast<const char*>(info->dlpi_tls_data);
    module->shared = {begin, begin + thread_local_segment->p_memsz};
  }
  return 1;
}

const Module& module() {
  static thread_local Module instance;
  // The thread-local segment comes into being with its first use.
  if (instance.shared.begin == nullptr) dl_iterate_phdr(describe_module, &instance);
  return instance;
}

// Which bytes of the shared memory of this OS thread its block has written.
std::vector<bool>& written() {
  static thread_local std::vector<bool> bytes;
  return bytes;
}

void note_written(const Range& shared, const char* begin, const char* end) {
  std::vector<bool>& bytes = written();
  bytes.resize(static_cast<std::size_t>(shared.end - shared.begin));
  for (const char* byte = begin; byte < end; ++byte) bytes[byte - shared.begin] = true;
}

bool is_written(const Range& shared, const char* begin, const char* end) {
  const std::vector<bool>& bytes = written();
  const auto first = static_cast<std::size_t>(begin - shared.begin);
  const auto last = static_cast<std::size_t>(end - shared.begin);
  if (last > bytes.size()) return false;
  return std::all_of(bytes.begin() + first, bytes.begin() + last, [](bool is) { return is; });
}

bool contains(const Range& range, const char* begin, const char* end) {
  return begin >= range.begin && end <= range.end;
}

// Where the nearest of the ranges lies, for a message.
std::string beside(const std::vector<Range>& ranges, const char* begin, const char* end) {
  const Range* nearest = nullptr;
  std::ptrdiff_t least = PTRDIFF_MAX;
  for (const Range& range : ranges) {
    const std::ptrdiff_t distance = begin < range.begin ? range.begin - end : begin - range.end;
    if (distance < least) least = distance, nearest = &range;
  }
  if (nearest == nullptr) return "the kernel was given no memory";
  if (begin < nearest->begin && end > nearest->begin) return "across the beginning of a tensor";
  if (begin < nearest->end && end > nearest->end) return "across the end of a tensor";
  return std::to_string(least) + " bytes " + (begin < nearest->begin ? "before" : "after") +
         " a tensor of " + std::to_string(nearest->end - nearest->begin) + " bytes";
}

const char* verb(Access access) { return access == Access::kRead ? "read" : "written"; }

bool is_local(const Thread& thread, const void* address) {
  return address >= thread.stack->begin() && address < thread.stack->end();
}

void check(const void* address, std::size_t bytes, Access access, const Site& site) {
  Block* const block = current_block();
  if (block == nullptr) return;  // host code
  const char* const begin = static_cast<const char*>(address);
  const char* const end = begin + bytes;
  Thread& thread = block->thread();
  if (thread.inside) return;
  if (is_local(thread, begin)) return;
  if (access == Access::kWrite) thread.looks = 0;
  const std::vector<Range>* const ranges = block->grid().arguments;
  if (ranges != nullptr) {
    for (const Range& range : *ranges) {
      if (contains(range, begin, end)) return;
    }
  }
  const Kernel& kernel = block->grid().kernel;
  const char* const parameters = static_cast<const char*>(kernel.parameters);
  if (contains({parameters, parameters + kernel.bytes}, begin, end)) return;
  if (contains(module().shared, begin, end)) {
    const Inside scope(thread);
    const Range dynamic{diglot_dynamic_shared,
                        diglot_dynamic_shared + block->grid().launch.shared_bytes};
    if (end > dynamic.end && begin < dynamic.begin + kMaxSharedBytes) {
      block->fail(std::to_string(bytes) + " bytes out of bounds are " + verb(access) +
                      ": the block has " + std::to_string(dynamic.end - dynamic.begin) +
                      " bytes of dynamic shared memory",
                  site);
    }
    if (access == Access::kWrite) note_written(module().shared, begin, end);
    if (!is_written(module().shared, begin, end)) {
      block->fail(
          "shared memory is read that no thread of the block has written: a barrier is "
          "missing, or a writer",
          site);
    }
    if (!options().finds_races) return;
    const std::string race = block->races().note(thread, address, bytes, access, site);
    if (race.empty()) return;
    block->fail(race, site);
  }
  if (contains(module().image, begin, end)) return;
  if (ranges == nullptr) return;
  thread.inside = true;
  block->fail(std::to_string(bytes) + " bytes out of bounds are " + verb(access) + ", " +
                  beside(*ranges, begin, end),
              site);
}

// A volatile access: reading is looking whether memory has changed, writing is changing it.
void check_look(const void* address, std::size_t bytes, const Site& site) {
  check(address, bytes, Access::kRead, site);
  Block* const block = current_block();
  if (block == nullptr) return;
  Thread& thread = block->thread();
  if (thread.inside || is_local(thread, address)) return;
  const Inside scope(thread);
  block->look(address, site);
}

void check_change(const void* address, std::size_t bytes, const Site& site) {
  check(address, bytes, Access::kWrite, site);
  Block* const block = current_block();
  if (block != nullptr && !is_local(block->thread(), address)) note_change();
}

}  // namespace

void clear_shared(std::size_t dynamic_bytes) {
  written().assign(written().size(), false);
  // A kernel that counts on zeros finds none. NaN, in every floating type.
  std::memset(diglot_dynamic_shared, 0xff, dynamic_bytes);
}

void touch(const void* address, std::size_t bytes, Access access, Place place) {
#if !defined(__SANITIZE_ADDRESS__)  // there, only these accesses would be known
  check(address, bytes, access, {nullptr, place});
#endif
}

}  // namespace diglot::interpreter

using diglot::interpreter::Access;
using diglot::interpreter::check;
using diglot::interpreter::check_change;
using diglot::interpreter::check_look;
using diglot::interpreter::current_block;
using diglot::interpreter::Place;

#define DIGLOT_HOOK extern "C" __attribute__((visibility("hidden"))) void
#define DIGLOT_ACCESS(BYTES)                                                  \
  DIGLOT_HOOK __tsan_read##BYTES(void* address) {                             \
    check(address, BYTES, Access::kRead, {__builtin_return_address(0), {}});  \
  }                                                                           \
  DIGLOT_HOOK __tsan_write##BYTES(void* address) {                            \
    check(address, BYTES, Access::kWrite, {__builtin_return_address(0), {}}); \
  }                                                                           \
  DIGLOT_HOOK __tsan_unaligned_read##BYTES(void* address) {                   \
    check(address, BYTES, Access::kRead, {__builtin_return_address(0), {}});  \
  }                                                                           \
  DIGLOT_HOOK __tsan_unaligned_write##BYTES(void* address) {                  \
    check(address, BYTES, Access::kWrite, {__builtin_return_address(0), {}}); \
  }                                                                           \
  DIGLOT_HOOK __tsan_volatile_read##BYTES(void* address) {                    \
    check_look(address, BYTES, {__builtin_return_address(0), {}});            \
  }                                                                           \
  DIGLOT_HOOK __tsan_volatile_write##BYTES(void* address) {                   \
    check_change(address, BYTES, {__builtin_return_address(0), {}});          \
  }                                                                           \
  DIGLOT_HOOK __tsan_unaligned_volatile_read##BYTES(void* address) {          \
    check_look(address, BYTES, {__builtin_return_address(0), {}});            \
  }                                                                           \
  DIGLOT_HOOK __tsan_unaligned_volatile_write##BYTES(void* address) {         \
    check_change(address, BYTES, {__builtin_return_address(0), {}});          \
  }
DIGLOT_ACCESS(1)
DIGLOT_ACCESS(2)
DIGLOT_ACCESS(4)
DIGLOT_ACCESS(8)
DIGLOT_ACCESS(16)
#undef DIGLOT_ACCESS

DIGLOT_HOOK __tsan_read_range(void* address, unsigned long bytes) {
  check(address, bytes, Access::kRead, {__builtin_return_address(0), {}});
}
DIGLOT_HOOK __tsan_write_range(void* address, unsigned long bytes) {
  check(address, bytes, Access::kWrite, {__builtin_return_address(0), {}});
}
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
  SourceLocation at;
  const TypeDescriptor* array;
  const TypeDescriptor* index;
};
struct TypeMismatch {
  SourceLocation at;
  const TypeDescriptor* type;
  unsigned char log_alignment, kind;
};
struct Overflow {
  SourceLocation at;
  const TypeDescriptor* type;
};

// To be called before anything else: what is said of a fault is put together by code that may be a
// kernel's copy.
void enter() {
  if (current_block() != nullptr) current_block()->thread().inside = true;
}

[[noreturn]] void sanitizer_fault(const std::string& what, const SourceLocation& at) {
  if (current_block() != nullptr) {
    current_block()->fail(what, {nullptr, Place{at.file, static_cast<int>(at.line)}});
  }
  throw std::logic_error(what + ", at " + at.file + ":" + std::to_string(at.line));
}

}  // namespace

#define DIGLOT_FINDING extern "C" __attribute__((visibility("hidden"), noreturn)) void

DIGLOT_FINDING __ubsan_handle_out_of_bounds_abort(OutOfBounds* data, std::uintptr_t index) {
  enter();
  sanitizer_fault("index " + std::to_string(static_cast<std::intptr_t>(index)) +
                      " out of bounds of an array of type " + data->array->name,
                  data->at);
}
DIGLOT_FINDING __ubsan_handle_type_mismatch_v1_abort(TypeMismatch* data, std::uintptr_t address) {
  enter();
  if (address == 0) sanitizer_fault("a null pointer is used", data->at);
  sanitizer_fault("a misaligned access: address " + std::to_string(address) +
                      " is no multiple of " + std::to_string(1u << data->log_alignment) +
                      " bytes, as type " + data->type->name + " needs",
                  data->at);
}
DIGLOT_FINDING __ubsan_handle_divrem_overflow_abort(Overflow* data, std::uintptr_t,
                                                    std::uintptr_t) {
  enter();
  sanitizer_fault("an integer division by zero, or of the least integer by -1", data->at);
}

// `assert` of the C library.
extern "C" __attribute__((visibility("hidden"), noreturn)) void __assert_fail(
    const char* expression, const char* file, unsigned line, const char* function) noexcept {
  enter();
  if (current_block() == nullptr) {
    std::fprintf(stderr, "%s:%u: %s: assertion '%s' failed\n", file, line, function, expression);
    std::abort();
  }
  current_block()->fail(std::string("assertion '") + expression + "' failed",
                        {nullptr, Place{file, static_cast<int>(line)}});
}
