#include "interpreter/tiles.h"

#include <map>

namespace diglot::interpreter {

namespace {

std::uintptr_t number_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) / kChunkBytes;
}

std::string fault_of(const Site& load) {
  return "its descriptor reads a tile in another order than the bulk load at " + load.text() +
         " has written it: with another swizzle, stride or leading offset";
}

}  // namespace

void Tiles::write(const std::shared_ptr<const Box>& box, std::uint32_t place, const char* to,
                  std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; ++offset) {
    const auto address = reinterpret_cast<std::uintptr_t>(to + offset);
    if (address % kChunkBytes != 0) continue;
    chunks_[number_of(to + offset)] = {box, place + static_cast<std::uint32_t>(offset)};
    offset += kChunkBytes - 1;
  }
}

void Tiles::overwrite(const void* to, std::size_t bytes) {
  if (chunks_.empty() || bytes == 0) return;
  const auto* const last = static_cast<const char*>(to) + bytes - 1;
  for (std::uintptr_t chunk = number_of(to); chunk <= number_of(last); ++chunk) {
    chunks_.erase(chunk);
  }
}

const Tiles::Chunk* Tiles::find(const char* chunk) const {
  const auto found = chunks_.find(number_of(chunk));
  return found == chunks_.end() ? nullptr : &found->second;
}

std::string Tiles::find_fault(const std::vector<const char*>& chunks,
                              const MatrixDescriptor& descriptor, Major major, int extent) const {
  if (chunks_.empty()) return "";
  // Chunks side by side, and of those the ones in one line of the layout. Where M or N is
  // contiguous, further lines are other panels: boxes, or planes of a box.
  const int side = major == Major::kK ? kLineChunks : extent / 8;
  const int line = major == Major::kK ? side : line_bytes_of(descriptor.swizzle) / kChunkBytes;
  std::map<const Box*, std::int64_t> steps[2];  // the first that was seen: down, and to the side
  for (int i = 0; i < static_cast<int>(chunks.size()); ++i) {
    const Chunk* const to = find(chunks[i]);
    for (const int back : {side, 1}) {
      const bool is_down = back == side;
      if (to == nullptr || (is_down ? i < side : i % side == 0)) continue;
      const Chunk* const from = find(chunks[i - back]);
      if (from == nullptr || from->box != to->box) continue;
      const Box& box = *to->box;
      const std::int64_t step = std::int64_t{to->place} - from->place;
      const bool is_alike = !is_down && i % side % line == 0
                                ? step != 0 && step % box.plane_bytes == 0
                                : steps[is_down].try_emplace(&box, step).first->second == step;
      if (!is_alike) return fault_of(box.site);
    }
  }
  return "";
}

}  // namespace diglot::interpreter
