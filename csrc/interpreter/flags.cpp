#include "interpreter/flags.h"

#include <algorithm>

namespace diglot::interpreter {

bool holds(Scope scope, const Party& one, const Party& other) {
  if (scope == Scope::kBlock) return one.group == other.group && one.rank == other.rank;
  return scope != Scope::kCluster || one.group == other.group;
}

void Flags::publish(const void* word, const Clock& clock, Scope scope, const Party& by,
                    const Site& site) {
  std::vector<Released>& all = words_[word];
  const bool is_narrow = scope < Scope::kDevice;
  for (Released& released : all) {
    if (released.scope != scope || (is_narrow && !holds(scope, released.by, by))) continue;
    released.is_by_several |= !holds(Scope::kBlock, released.by, by);
    released.clock = Order::join(released.clock, clock);
    released.site = site;
    return;
  }
  all.push_back({scope, by, false, clock, site});
}

Clock Flags::collect(const void* word, Scope scope, const Party& reader, Site* narrow) const {
  Clock result;
  const auto found = words_.find(word);
  if (found == words_.end()) return result;
  for (const Released& released : found->second) {
    const bool is_wide_enough =
        holds(scope, reader, released.by) && (scope >= Scope::kDevice || !released.is_by_several);
    if (is_wide_enough && holds(released.scope, released.by, reader)) {
      result = Order::join(result, released.clock);
    } else {
      *narrow = released.site;
    }
  }
  return result;
}

void Fences::read(const Flags& flags, const void* word, Scope scope, const Party& reader) {
  for (int i = 0; i < kScopes; ++i) {
    Site kept_out;
    const Clock clock = flags.collect(word, std::min(scope, static_cast<Scope>(i)), reader,
                                      i == index_of(scope) ? &narrow : &kept_out);
    collected_[i] = Order::join(collected_[i], clock);
  }
}

void Fences::read_later(const Flags& flags, const void* word) {
  constexpr std::ptrdiff_t kRecent = 16;
  const auto begin = pending_.end() - std::min<std::ptrdiff_t>(kRecent, pending_.size());
  const auto is_it = [&](const Pending& other) { return other.word == word; };
  if (std::any_of(begin, pending_.end(), is_it)) return;
  pending_.push_back({&flags, word});
}

void Fences::write(Flags& flags, const void* word, Scope scope, const Party& writer,
                   const Site& site) {
  std::uint32_t last = 0;
  for (int i = index_of(scope); i >= 0; --i) {
    const Clock& clock = released_[i];
    if (clock.epoch() == last) continue;  // no fence, or the same
    last = clock.epoch();
    flags.publish(word, clock, static_cast<Scope>(i), writer, site);
  }
}

void Fences::fence(Order& order, int thread, Scope scope, const Party& party) {
  const int level = index_of(scope);
  for (const Pending& read : pending_) {
    order.acquire(thread, read.flags->collect(read.word, scope, party, &narrow));
  }
  pending_.clear();
  order.acquire(thread, collected_[level]);
  const Clock clock = order.release(thread);
  for (int i = 0; i <= level; ++i) released_[i] = clock;
}

}  // namespace diglot::interpreter
