#include "interpreter/races.h"

#include <algorithm>

#include "interpreter/flags.h"
#include "interpreter/symbols.h"

namespace diglot::interpreter {

namespace {

// Of two strong accesses neither tears the other.
bool is_strong(Access access) { return access != Access::kRead && access != Access::kWrite; }

std::size_t mixed(std::size_t hash, std::size_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15u;
}

}  // namespace

std::string Site::text() const {
  if (place.file != nullptr) return std::string(place.file) + ":" + std::to_string(place.line);
  return code == nullptr ? "an unknown place" : source_line(code);
}

void Races::add_window(const char* begin, std::size_t bytes) {
  windows_.push_back({begin, bytes, {}});
  windows_.back().pages.resize((bytes + kPage - 1) / kPage);
}

void Races::remove_window(const char* begin) {
  const auto found = window_at(begin);
  for (const auto& page : found->pages) {
    for (std::size_t i = 0; page != nullptr && i < kPage; ++i) drop(page[i], 1);
  }
  windows_.erase(found);
}

Races::Window* Races::window_of(const char* address) {
  for (Window& window : windows_) {
    if (window.has(address)) return &window;
  }
  return nullptr;
}

bool Races::watches(const void* address) const {
  const char* const byte = static_cast<const char*>(address);
  return std::any_of(windows_.begin(), windows_.end(),
                     [&](const Window& window) { return window.has(byte); });
}

std::vector<Races::Window>::iterator Races::window_at(const char* begin) {
  return std::find_if(windows_.begin(), windows_.end(),
                      [&](const Window& window) { return window.begin == begin; });
}

std::string Races::note(const Actor& actor, const void* address, std::size_t bytes, Access access,
                        const Site& site, Scope scope) {
  const char* const first = static_cast<const char*>(address);
  Window* const window = window_of(first);
  if (window == nullptr) return "";
  if (window->is_closed) {
    return std::string("it ") + (is_read(access) ? "reads " : "writes ") + where_ +
           " of a block that has ended: a block leaves its cluster early";
  }
  const Touch touch{actor.epoch,
                    actor.clock->group(),
                    actor.component,
                    actor.rank,
                    manner_of(actor, access, site, scope),
                    actor.issue};
  if (first_.rank < 0) first_ = {touch.group, touch.rank};
  has_several_ |= !holds(Scope::kBlock, first_, {touch.group, touch.rank});
  const auto begin = static_cast<std::size_t>(first - window->begin);
  const std::size_t end = std::min(begin + bytes, window->bytes);
  for (std::size_t i = begin; i < end;) {
    std::unique_ptr<Id[]>& page = window->pages[i / kPage];
    if (page == nullptr) page = std::make_unique<Id[]>(kPage);
    Id* const ids = page.get() + i % kPage;
    const std::size_t most = std::min(kPage - i % kPage, end - i);
    const Id from = ids[0];
    std::size_t count = 1;
    while (count < most && ids[count] == from) ++count;
    const Id to = follow(from, count, touch, actor);
    if (!fault_.empty()) return std::move(fault_) + " (" + locate_(i) + ")";
    if (to != from) std::fill(ids, ids + count, to);
    i += count;
  }
  return "";
}

std::uint32_t Races::manner_of(const Actor& actor, Access access, const Site& site, Scope scope) {
  std::size_t hash = mixed(0, reinterpret_cast<std::size_t>(site.code));
  hash = mixed(hash, reinterpret_cast<std::size_t>(site.place.file) + site.place.line);
  hash = mixed(hash, static_cast<std::size_t>(access) * 16 + static_cast<std::size_t>(scope) * 2 +
                         actor.is_async);
  const char* const what = actor.what == nullptr ? "" : actor.what;
  const auto is_it = [&](std::uint32_t id) {
    const Manner& manner = manners_[id];
    return manner.site == site && manner.access == access && manner.scope == scope &&
           manner.is_async == actor.is_async && manner.what == what;
  };
  std::uint32_t& recent = recent_[hash >> 32 & (kRecent - 1)];
  if (recent < manners_.size() && is_it(recent)) return recent;
  const auto [begin, end] = manner_ids_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    if (is_it(entry->second)) return recent = entry->second;
  }
  recent = static_cast<std::uint32_t>(manners_.size());
  manners_.push_back({site, access, scope, actor.is_async, what});
  has_narrow_ |= scope < Scope::kDevice;
  manner_ids_.emplace(hash, recent);
  return recent;
}

// Whether a touch leaves a history as it is: it repeats another, or it is a fault (see fault_).
bool Races::changes_nothing(History& history, const Touch& touch, const Actor& actor) {
  const Access access = manners_[touch.manner].access;
  const bool is_plain_read = access == Access::kRead, is_plain_write = access == Access::kWrite;
  const std::vector<Touch>& alike = (is_plain_read ? history.reads : history.strong).all;
  const bool is_clear = history.reads.all.empty() && history.strong.all.empty();
  if (is_plain_write ? is_clear && history.write == touch
                     : !alike.empty() && alike.back() == touch) {
    return true;  // the same once more
  }
  if (find_fault(history.write, touch, actor)) return true;
  if (!is_plain_read && find_fault(history.reads, touch, actor)) return true;
  const bool may_race_strong = !is_strong(access) || (has_narrow_ && has_several_);
  if (may_race_strong && find_fault(history.strong, touch, actor)) return true;
  return !is_plain_write && !alike.empty() && alike.back().is_like(touch);
}

// The history of bytes after one more touch.
Races::Id Races::follow(Id from, std::size_t bytes, const Touch& touch, const Actor& actor) {
  std::size_t hash = mixed(mixed(from, touch.epoch), touch.component);
  hash = mixed(mixed(mixed(hash, touch.manner), touch.group), touch.issue);
  Step& step = steps_[hash >> 32 & (kSteps - 1)];
  if (step.from == from && step.touch == touch && step.to != 0 &&
      histories_[from].version == step.from_version &&
      histories_[step.to].version == step.to_version) {
    histories_[step.to].bytes += bytes;
    drop(from, bytes);
    return step.to;
  }
  if (changes_nothing(histories_[from], touch, actor)) return from;
  const Access access = manners_[touch.manner].access;
  const bool is_plain_write = access == Access::kWrite;
  const bool is_alone = from != 0 && histories_[from].bytes == bytes;
  const Id to = is_alone ? from : take();
  History& history = histories_[to];
  if (is_alone) {
    ++history.version;
  } else {
    const History& old = histories_[from];
    history.write = old.write;
    if (!is_plain_write) history.reads = old.reads, history.strong = old.strong;
    history.bytes = bytes;
    step = {from, to, old.version, history.version, touch};
  }
  if (is_plain_write) {
    history.write = touch;
    history.reads.clear();
    history.strong.clear();
  } else {
    add(access == Access::kRead ? history.reads : history.strong, touch, actor);
  }
  if (!is_alone) drop(from, bytes);
  return to;
}

// Adds a touch. Forgets each touch that it replaces: whatever races with that one races with the
// new one too.
void Races::add(Touches& touches, const Touch& touch, const Actor& actor) const {
  std::vector<Touch>& all = touches.all;
  if (!all.empty() && may_forget(all.back(), touch, actor)) all.pop_back();
  if (all.size() >= touches.prune_at) {
    const auto is_old = [&](const Touch& other) { return may_forget(other, touch, actor); };
    all.erase(std::remove_if(all.begin(), all.end(), is_old), all.end());
    touches.prune_at = std::max(kFew, 2 * all.size());
  }
  all.push_back(touch);
  touches.seen.reset();
}

void Races::drop(Id id, std::size_t bytes) {
  if (id == 0 || (histories_[id].bytes -= bytes) > 0) return;
  ++histories_[id].version;
  free_.push_back(id);
}

Races::Id Races::take() {
  if (free_.empty()) {
    histories_.emplace_back();
    return static_cast<Id>(histories_.size() - 1);
  }
  const Id id = free_.back();
  free_.pop_back();
  histories_[id].reads.clear();
  histories_[id].strong.clear();
  return id;
}

Races::Verdict Races::judge(const Touch& earlier, const Actor& actor) const {
  if (actor.past != nullptr && actor.past->has(earlier.group)) return Verdict::kOrdered;
  if (actor.clock->seen(earlier.group, earlier.component) < earlier.epoch) return Verdict::kRace;
  const bool needs_fence = actor.is_async && !manners_[earlier.manner].is_async;
  if (needs_fence &&
      actor.clock->fenced(space_, earlier.group, earlier.component) < earlier.epoch) {
    return Verdict::kNoFence;
  }
  return Verdict::kOrdered;
}

bool Races::may_forget(const Touch& earlier, const Touch& later, const Actor& actor) const {
  if (manners_[earlier.manner].scope < manners_[later.manner].scope) return false;
  const Access first = manners_[earlier.manner].access, second = manners_[later.manner].access;
  // Both are plain reads, or both strong: then the first must be a read if the second is.
  const bool races_less = second != Access::kStrongRead || first == Access::kStrongRead;
  return races_less && judge(earlier, actor) == Verdict::kOrdered;
}

// Whether two touches of a byte are a fault. Describes it in fault_.
bool Races::find_fault(const Touch& earlier, const Touch& later, const Actor& actor) {
  if (earlier.epoch == 0) return false;
  const Manner& first = manners_[earlier.manner];
  const Manner& second = manners_[later.manner];
  if (is_read(first.access) && is_read(second.access)) return false;
  const bool are_strong = is_strong(first.access) && is_strong(second.access);
  const Party theirs{earlier.group, earlier.rank}, own{later.group, later.rank};
  const Scope scope = std::min(first.scope, second.scope);
  if (are_strong && holds(scope, theirs, own)) return false;
  const Verdict verdict = judge(earlier, actor);
  if (verdict == Verdict::kOrdered) return false;
  const bool was_read = is_read(first.access);
  if (verdict == Verdict::kNoFence && was_read &&
      !options().finds_generic_reads_before_async_writes) {
    return false;
  }
  const std::string what = std::string(is_read(second.access) ? "it reads " : "it writes ");
  const std::string whose = "what " + name_of(earlier, actor) + (was_read ? " read" : " wrote") +
                            " at " + first.site.text();
  if (verdict == Verdict::kRace) {
    fault_ = std::string("a race in ") + where_ + ": " + what + whose +
             (are_strong ? ", both atomically, but with a scope too narrow for the two threads"
              : first.is_async || second.is_async || earlier.group != later.group
                  ? ", and nothing orders the two"
                  : ", with no barrier between");
  } else {
    fault_ = std::string(was_read ? "a generic read before an async write without a proxy fence in "
                                  : "a proxy fence is missing in ") +
             where_ + ": " + what + "through the async proxy " + whose +
             ", with no fence.proxy.async" + (space_ == Space::kGlobal ? ".global" : "") +
             " between";
  }
  return true;
}

bool Races::find_fault(Touches& earlier, const Touch& later, const Actor& actor) {
  const bool are_many = earlier.all.size() > kFew && !actor.is_async;
  if (are_many && earlier.seen != nullptr && earlier.seen == actor.clock->home()) return false;
  bool is_known = are_many;
  for (const Touch& touch : earlier.all) {
    if (find_fault(touch, later, actor)) return true;
    is_known = is_known && actor.clock->home_has(touch.group, touch.component, touch.epoch);
  }
  if (is_known) earlier.seen = actor.clock->home();
  return false;
}

std::string Races::name_of(const Touch& touch, const Actor& to) const {
  const std::string& what = manners_[touch.manner].what;
  return what.empty() ? name_(touch.group, touch.component, to) : what;
}

std::string Races::close_window(const char* begin, const Clock& clock, int first, int last) {
  const auto window = window_at(begin);
  window->is_closed = true;
  const auto account = [&](const Touch& touch) -> std::string {
    if (touch.epoch == 0 || (touch.component >= first && touch.component < last) ||
        clock.seen(touch.group, touch.component) >= touch.epoch) {
      return "";
    }
    const Manner& manner = manners_[touch.manner];
    const Actor reader{first, 0, &clock, false, nullptr, -1};
    return name_of(touch, reader) + (is_read(manner.access) ? " reads " : " writes ") + where_ +
           " of it at " + manner.site.text() + ", and nothing orders that before the block's end";
  };
  for (const auto& page : window->pages) {
    for (std::size_t i = 0; page != nullptr && i < kPage; ++i) {
      if (page[i] == 0 || (i > 0 && page[i] == page[i - 1])) continue;
      const History& history = histories_[page[i]];
      std::string found = account(history.write);
      for (const std::vector<Touch>* const all : {&history.reads.all, &history.strong.all}) {
        for (const Touch& touch : *all) {
          if (found.empty()) found = account(touch);
        }
      }
      if (!found.empty()) return found;
    }
  }
  return "";
}

}  // namespace diglot::interpreter
