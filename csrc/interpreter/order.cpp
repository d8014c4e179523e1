#include "interpreter/order.h"

#include <algorithm>
#include <cstddef>

#pragma GCC optimize("O3")  // at less it makes no vectors of loops over counts

namespace diglot::interpreter {

namespace {

std::uint32_t at(const Counts& counts, int component) {
  const auto i = static_cast<std::size_t>(component);
  return counts != nullptr && i < counts->size() ? (*counts)[i] : 0;
}

Counts with(const Counts& counts, int component, std::uint32_t epoch) {
  if (at(counts, component) >= epoch) return counts;
  const std::size_t size = static_cast<std::size_t>(component) + 1;
  std::vector<std::uint32_t> result;
  result.reserve(std::max(size, counts == nullptr ? 0 : counts->size()));
  if (counts != nullptr) result = *counts;
  if (result.size() < size) result.resize(size);
  result[component] = epoch;
  return std::make_shared<const std::vector<std::uint32_t>>(std::move(result));
}

// Whether some count of `a` exceeds that of `b`, and the other way round.
std::pair<bool, bool> exceed(const std::vector<std::uint32_t>& a,
                             const std::vector<std::uint32_t>& b) {
  constexpr std::size_t kChunk = 256;  // without a branch, so that the compiler makes vectors of it
  const std::size_t both = std::min(a.size(), b.size());
  std::uint32_t a_exceeds = a.size() > both, b_exceeds = b.size() > both;
  for (std::size_t begin = 0; begin < both && !(a_exceeds && b_exceeds); begin += kChunk) {
    const std::size_t end = std::min(begin + kChunk, both);
    for (std::size_t i = begin; i < end; ++i) {
      a_exceeds |= a[i] > b[i];
      b_exceeds |= b[i] > a[i];
    }
  }
  return {a_exceeds != 0, b_exceeds != 0};
}

Counts join(const Counts& a, const Counts& b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr) return b;
  const auto [a_exceeds, b_exceeds] = exceed(*a, *b);
  if (!b_exceeds) return a;
  if (!a_exceeds) return b;
  const auto& [longer, shorter] = a->size() < b->size() ? std::pair(b, a) : std::pair(a, b);
  std::vector<std::uint32_t> result = *longer;
  for (std::size_t i = 0; i < shorter->size(); ++i) result[i] = std::max(result[i], (*shorter)[i]);
  return std::make_shared<const std::vector<std::uint32_t>>(std::move(result));
}

using SharedAway = std::shared_ptr<const Known::Away>;

// Where a group is, or would be.
template <typename Away>
auto place_of(Away& away, std::uint32_t group) {
  return std::lower_bound(away.begin(), away.end(), group,
                          [](const auto& entry, std::uint32_t key) { return entry.first < key; });
}

const Counts* find(const SharedAway& away, std::uint32_t group) {
  if (away == nullptr) return nullptr;
  const auto found = place_of(*away, group);
  return found != away->end() && found->first == group ? &found->second : nullptr;
}

SharedAway with(const SharedAway& away, std::uint32_t group, const Counts& counts) {
  if (counts == nullptr) return away;
  const Counts* const known = find(away, group);
  const Counts joined = known == nullptr ? counts : join(*known, counts);
  if (known != nullptr && joined == *known) return away;
  Known::Away result;
  if (away != nullptr) result = *away;
  const auto place = place_of(result, group);
  if (known != nullptr) {
    place->second = joined;
  } else {
    result.insert(place, {group, joined});
  }
  return std::make_shared<const Known::Away>(std::move(result));
}

SharedAway join(const SharedAway& a, const SharedAway& b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr) return b;
  SharedAway result = a;
  for (const auto& [group, counts] : *b) result = with(result, group, counts);
  return result;
}

// What the owner of `a`, in a group, knows with what that of `b`, in another, knows.
Known join(const Known& a, std::uint32_t group, const Known& b, std::uint32_t other) {
  Known result = a;
  if (group == other) {
    result.home = join(a.home, b.home);
    result.away = join(a.away, b.away);
    return result;
  }
  if (const Counts* const home = find(b.away, group)) result.home = join(a.home, *home);
  result.away = with(join(a.away, b.away), other, b.home);
  return result;
}

void assign(Known& to, const Known& from) {
  if (to.home != from.home) to.home = from.home;
  if (to.away != from.away) to.away = from.away;
}

}  // namespace

std::uint32_t Clock::count(const Part& part, std::uint32_t group, int component) const {
  if (group == group_) return component == own_ ? part.own : at(part.known.home, component);
  const Counts* const counts = find(part.known.away, group);
  return counts == nullptr ? 0 : at(*counts, component);
}

bool Clock::home_has(std::uint32_t group, int component, std::uint32_t epoch) const {
  return group == group_ && at(seen_.known.home, component) >= epoch;
}

Known Clock::whole(const Part& part) const {
  if (own_ < 0) return part.known;
  return {with(part.known.home, own_, part.own), part.known.away};
}

void PhaseClock::release(const Clock& clock) { current_ = Order::join(current_, clock); }

Order::Order(int threads, std::uint32_t group) : clocks_(threads), components_(threads) {
  for (int thread = 0; thread < threads; ++thread) {
    clocks_[thread].group_ = group;
    clocks_[thread].own_ = thread;
    clocks_[thread].seen_.own = 1;
  }
}

Clock Order::release(int thread) {
  const Clock released = clocks_[thread];
  ++clocks_[thread].seen_.own;
  return released;
}

void Order::acquire(int thread, const Clock& clock) {
  Clock& to = clocks_[thread];
  const auto take = [&](Clock::Part& part, const Clock::Part& from) {
    assign(part.known, interpreter::join(part.known, to.group_, clock.whole(from), clock.group_));
  };
  take(to.seen_, clock.seen_);
  for (int space = 0; space < kSpaces; ++space) take(to.fenced_[space], clock.fenced_[space]);
}

// What threads know together in one part of their clocks.
template <typename PartOf>
Known Order::gather(const std::vector<int>& threads, PartOf part_of) const {
  Known result = part_of(clocks_[threads.front()]).known;
  for (const int thread : threads) {
    const Known& known = part_of(clocks_[thread]).known;
    result.home = interpreter::join(result.home, known.home);
    result.away = interpreter::join(result.away, known.away);
  }
  const auto is_new = [&](int thread) {
    return at(result.home, thread) < part_of(clocks_[thread]).own;
  };
  if (std::none_of(threads.begin(), threads.end(), is_new)) return result;
  std::vector<std::uint32_t> counts;
  counts.reserve(components_);
  if (result.home != nullptr) counts = *result.home;
  counts.resize(std::max<std::size_t>(counts.size(), components_));
  for (const int thread : threads) {
    counts[thread] = std::max(counts[thread], part_of(clocks_[thread]).own);
  }
  result.home = std::make_shared<const std::vector<std::uint32_t>>(std::move(counts));
  return result;
}

void Order::meet(const std::vector<int>& threads) {
  const auto meet_in = [&](auto part_of) {
    const Known known = gather(threads, part_of);
    for (const int thread : threads) assign(part_of(clocks_[thread]).known, known);
  };
  meet_in([](auto& clock) -> auto& { return clock.seen_; });
  for (int space = 0; space < kSpaces; ++space) {
    meet_in([space](auto& clock) -> auto& { return clock.fenced_[space]; });
  }
  for (const int thread : threads) ++clocks_[thread].seen_.own;
}

void Order::fence_proxy(int thread, Space space) {
  Clock& clock = clocks_[thread];
  clock.fenced_[static_cast<int>(space)] = clock.seen_;
  ++clock.seen_.own;
}

Clock Order::join(const Clock& a, const Clock& b) {
  if (a.is_empty()) return b;
  Clock result;
  result.group_ = a.group_;
  const auto both = [&](const Clock::Part& x, const Clock::Part& y) {
    const Known known = a.whole(x);
    if (b.own_ < 0 || a.group_ != b.group_) {
      return interpreter::join(known, a.group_, b.whole(y), b.group_);
    }
    // The own epoch comes last: until then, many threads share the same counts.
    Known joined = interpreter::join(known, a.group_, y.known, b.group_);
    joined.home = with(joined.home, b.own_, y.own);
    return joined;
  };
  result.seen_.known = both(a.seen_, b.seen_);
  for (int space = 0; space < kSpaces; ++space) {
    result.fenced_[space].known = both(a.fenced_[space], b.fenced_[space]);
  }
  return result;
}

Clock Order::only(int channel, std::uint32_t epoch) const {
  Clock nothing;
  nothing.group_ = clocks_.front().group_;
  return complete(nothing, channel, epoch);
}

Clock Order::complete(const Clock& issued, int channel, std::uint32_t epoch) const {
  Clock result;
  result.group_ = issued.group_;
  result.seen_.known = issued.whole(issued.seen_);
  result.seen_.known.home = with(result.seen_.known.home, channel, epoch);
  for (int space = 0; space < kSpaces; ++space) {
    result.fenced_[space].known = issued.whole(issued.fenced_[space]);
  }
  return result;
}

}  // namespace diglot::interpreter
