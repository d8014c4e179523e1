#include "interpreter/order.h"

#include <algorithm>
#include <cstddef>

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

bool is_within(const std::vector<std::uint32_t>& small, const std::vector<std::uint32_t>& large) {
  if (small.size() > large.size()) return false;
  std::uint32_t exceeds = 0;
  for (std::size_t i = 0; i < small.size(); ++i) exceeds |= small[i] > large[i];
  return exceeds == 0;
}

Counts join(const Counts& a, const Counts& b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr || is_within(*a, *b)) return b;
  if (is_within(*b, *a)) return a;
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
  take(to.fenced_, clock.fenced_);
}

Known Order::gather(const std::vector<int>& threads, Clock::Part Clock::* part) const {
  Known result = (clocks_[threads.front()].*part).known;
  for (const int thread : threads) {
    const Known& known = (clocks_[thread].*part).known;
    result.home = interpreter::join(result.home, known.home);
    result.away = interpreter::join(result.away, known.away);
  }
  const auto is_new = [&](int thread) {
    return at(result.home, thread) < (clocks_[thread].*part).own;
  };
  if (std::none_of(threads.begin(), threads.end(), is_new)) return result;
  std::vector<std::uint32_t> counts;
  counts.reserve(components_);
  if (result.home != nullptr) counts = *result.home;
  counts.resize(std::max<std::size_t>(counts.size(), components_));
  for (const int thread : threads) {
    counts[thread] = std::max(counts[thread], (clocks_[thread].*part).own);
  }
  result.home = std::make_shared<const std::vector<std::uint32_t>>(std::move(counts));
  return result;
}

void Order::meet(const std::vector<int>& threads) {
  const Known seen = gather(threads, &Clock::seen_), fenced = gather(threads, &Clock::fenced_);
  for (const int thread : threads) {
    assign(clocks_[thread].seen_.known, seen);
    assign(clocks_[thread].fenced_.known, fenced);
    ++clocks_[thread].seen_.own;
  }
}

void Order::fence_proxy(int thread) {
  Clock& clock = clocks_[thread];
  clock.fenced_ = clock.seen_;
  ++clock.seen_.own;
}

Clock Order::join(const Clock& a, const Clock& b) {
  if (a.is_empty()) return b;
  Clock result;
  result.group_ = a.group_;
  const auto both = [&](const Clock::Part& x, const Clock::Part& y) {
    return interpreter::join(a.whole(x), a.group_, b.whole(y), b.group_);
  };
  result.seen_.known = both(a.seen_, b.seen_);
  result.fenced_.known = both(a.fenced_, b.fenced_);
  return result;
}

Clock Order::complete(const Clock& issued, int channel, std::uint32_t epoch) const {
  Clock result;
  result.group_ = issued.group_;
  result.seen_.known = issued.whole(issued.seen_);
  result.seen_.known.home = with(result.seen_.known.home, channel, epoch);
  result.fenced_.known = issued.whole(issued.fenced_);
  return result;
}

}  // namespace diglot::interpreter
