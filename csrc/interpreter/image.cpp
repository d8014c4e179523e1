#include "interpreter/image.h"

#include <link.h>

#include <utility>

namespace diglot::interpreter {

const Range* find(const std::vector<Range>& ranges, const char* begin, const char* end,
                  Access access) {
  const Range* found = nullptr;
  for (const Range& range : ranges) {
    if (!contains(range, begin, end)) continue;
    const bool reads_padding = !only_writes(access) && find_padding(range, begin, end) != nullptr;
    if ((range.is_writable || is_read(access)) && !reads_padding) return &range;
    found = &range;
  }
  return found;
}

namespace {

int describe(dl_phdr_info* info, std::size_t, void* result) {
  std::vector<Range> segments;
  Range relocated{};  // written by the loader, and by nobody else
  const ElfW(Phdr)* thread_local_segment = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = info->dlpi_phdr[i];
    const char* const begin = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    const Range range{begin, begin + segment.p_memsz, (segment.p_flags & PF_W) != 0};
    if (segment.p_type == PT_TLS) thread_local_segment = &segment;
    if (segment.p_type == PT_GNU_RELRO) relocated = range;
    if (segment.p_type == PT_LOAD) segments.push_back(range);
  }
  const char* const code = reinterpret_cast<const char*>(&describe);
  if (find(segments, code, code + 1, Access::kRead) == nullptr) return 0;
  auto* const image = static_cast<Image*>(result);
  for (Range& range : segments) {
    if (contains(range, relocated.begin, relocated.end)) range.begin = relocated.end;
  }
  relocated.is_writable = false;
  segments.push_back(relocated);
  image->segments = std::move(segments);
  if (thread_local_segment != nullptr && info->dlpi_tls_data != nullptr) {
    const char* const begin = static_cast<const char*>(info->dlpi_tls_data);
    image->thread_locals = {begin, begin + thread_local_segment->p_memsz};
  }
  return 1;
}

}  // namespace

const Image& image() {
  static thread_local Image instance;
  // The thread-local segment comes into being with its first use.
  if (instance.thread_locals.begin == nullptr) {
    static const std::vector<Variable> variables = shared_variables();
    dl_iterate_phdr(describe, &instance);
    instance.variables = &variables;
  }
  return instance;
}

}  // namespace diglot::interpreter
