#include "interpreter/tiles.h"

#include <map>

namespace diglot::interpreter {

namespace {

std::uintptr_t number_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) / kChunkBytes;
}

// The first of the steps from chunk to chunk, and whether all the others are as far.
struct Steps {
  std::uint64_t in_box, in_global;
  bool are_equal_in_box = true, are_equal_in_global = true;
};

std::string fault_of(const Site& load) {
  return "its descriptor reads a tile in another order than the bulk load at " + load.text() +
         " has written it: with another swizzle, stride or leading offset";
}

}  // namespace

void Tiles::write(const Origin& from, const char* to, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; ++offset) {
    const auto address = reinterpret_cast<std::uintptr_t>(to + offset);
    if (address % kChunkBytes != 0) continue;
    chunks_[number_of(to + offset)] = {from.box, from.in_box + static_cast<std::uint32_t>(offset),
                                       from.global + offset};
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

const Tiles::Origin* Tiles::find(const char* chunk) const {
  const auto found = chunks_.find(number_of(chunk));
  return found == chunks_.end() ? nullptr : &found->second;
}

std::string Tiles::find_fault(const std::vector<const char*>& chunks, Major major,
                              int extent) const {
  if (chunks_.empty()) return "";
  const int side = major == Major::kK ? kLineChunks : extent / 8;  // chunks side by side
  std::map<const Box*, Steps> steps[2];                            // down, and to the side
  for (int i = 0; i < static_cast<int>(chunks.size()); ++i) {
    const Origin* const to = find(chunks[i]);
    for (const int back : {side, 1}) {
      const bool is_down = back == side;
      if (to == nullptr || (is_down ? i < side : i % side == 0)) continue;
      const Origin* const from = find(chunks[i - back]);
      if (from == nullptr || from->box != to->box) continue;
      const Steps step{to->in_box - from->in_box, to->global - from->global};
      Steps& first = steps[is_down].try_emplace(to->box.get(), step).first->second;
      first.are_equal_in_box &= step.in_box == first.in_box;
      first.are_equal_in_global &= step.in_global == first.in_global;
      if (!first.are_equal_in_box && !first.are_equal_in_global) return fault_of(to->box->site);
    }
  }
  return "";
}

}  // namespace diglot::interpreter
