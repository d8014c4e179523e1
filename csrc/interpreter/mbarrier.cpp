#include "interpreter/mbarrier.h"

#include <utility>

#include "interpreter/shared_memory.h"

namespace diglot::interpreter {

namespace {

constexpr std::int64_t kMost = (1 << 20) - 1;  // arrivals, and bytes in flight
constexpr const char* kNotInitialised = "an mbarrier is used that is not initialised";

}  // namespace

void Mbarriers::find_bounds() {
  begin_ = states_.empty() ? 0 : states_.begin()->first;
  end_ = states_.empty() ? 0 : states_.rbegin()->first + kMbarrierBytes;
}

bool Mbarriers::overlaps(std::size_t begin, std::size_t end) const {
  const auto after = states_.lower_bound(begin);
  if (after != states_.end() && after->first < end) return true;
  return after != states_.begin() && std::prev(after)->first + kMbarrierBytes > begin;
}

std::string Mbarriers::init(std::size_t offset, std::uint32_t arrivals, int component, int thread,
                            const Site& site) {
  if (offset % kMbarrierBytes != 0) {
    return "an mbarrier at an address that is no multiple of 8: " + std::to_string(offset);
  }
  if (arrivals == 0 || arrivals > kMost) {
    return "an mbarrier is initialised for " + std::to_string(arrivals) +
           " arrivals; 1 to 1048575 are possible";
  }
  if (const State* const live = find(offset)) {
    return "an mbarrier is initialised again, without invalidate() since it was initialised at " +
           live->site.text();
  }
  State state;
  state.expected = state.pending = arrivals;
  state.site = site;
  state.component = component;
  state.thread = thread;
  states_[offset] = state;
  find_bounds();
  return "";
}

std::string Mbarriers::invalidate(std::size_t offset) {
  if (states_.erase(offset) == 0) return kNotInitialised;
  find_bounds();
  return "";
}

void Mbarriers::fence() {
  for (auto& [offset, state] : states_) state.is_fenced = true;
}

std::vector<int> Mbarriers::fence(int thread) {
  std::vector<int> components;
  for (auto& [offset, state] : states_) {
    if (state.thread != thread) continue;
    state.is_fenced = true;
    components.push_back(state.component);
  }
  return components;
}

const Mbarriers::State* Mbarriers::find(std::size_t offset) const {
  const auto found = states_.find(offset);
  return found == states_.end() ? nullptr : &found->second;
}

bool Mbarriers::is_fenced(std::size_t offset) const {
  const State* const state = find(offset);
  return state == nullptr || state->is_fenced;
}

std::string Mbarriers::arrive(std::size_t offset, std::uint32_t arrivals, std::uint32_t bytes,
                              const Arrival& arrival) {
  const auto found = states_.find(offset);
  if (found == states_.end()) return kNotInitialised;
  State& state = found->second;
  state.due_bytes += bytes;
  state.expected_bytes += bytes;
  if (state.due_bytes > kMost) {
    return "an mbarrier expects " + std::to_string(state.due_bytes) +
           " bytes in a phase, beyond its limit of 1048575";
  }
  if (arrivals > state.pending) {
    return "an mbarrier gets " + std::to_string(arrivals) + " arrivals more than its " +
           std::to_string(state.expected) + " in one phase: " + account(offset);
  }
  if (arrivals > 0) {  // to expect bytes releases nothing
    state.pending -= arrivals;
    (arrival.is_of_other_block ? state.others : state.own).release(arrival.clock);
    if (arrival.is_of_other_block) state.arriving = arrival.site;
  }
  return end_phase(state);
}

std::string Mbarriers::complete(std::size_t offset, std::uint32_t bytes, const Clock& clock) {
  const auto found = states_.find(offset);
  if (found == states_.end()) return kNotInitialised;
  State& state = found->second;
  state.due_bytes -= bytes;
  state.own.release(clock);
  if (state.due_bytes < -kMost) {
    return "an mbarrier gets more than 1048575 bytes beyond those that it expects";
  }
  return end_phase(state);
}

std::string Mbarriers::end_phase(State& state) {
  if (state.pending != 0 || state.due_bytes != 0) return "";
  ++state.phase;
  state.pending = state.expected;
  state.expected_bytes = 0;
  state.own.end_phase();
  state.others.end_phase();
  state.arrived = std::exchange(state.arriving, {});
  return "";
}

Channel Mbarriers::channel(std::size_t offset) const {
  const State* const state = find(offset);
  if (state == nullptr) return {};
  return {state->component, static_cast<std::uint32_t>(state->phase) + 2};
}

Clock Mbarriers::released(std::size_t offset, Scope scope) const {
  const State* const state = find(offset);
  if (state == nullptr) return {};
  const Clock& own = state->own.last();
  return scope == Scope::kBlock ? own : Order::join(own, state->others.last());
}

Site Mbarriers::other_block(std::size_t offset) const {
  const State* const state = find(offset);
  return state == nullptr ? Site{} : state->arrived;
}

std::string Mbarriers::begin_wait(std::size_t offset, bool parity, Wait& wait) const {
  const State* const state = find(offset);
  if (state == nullptr) return kNotInitialised;
  const std::uint64_t phase = state->phase;
  // Of a new barrier the phase before the first, of parity 1, counts as ended.
  wait = {offset, phase % 2 == parity ? phase : phase - 1};
  return "";
}

bool Mbarriers::has_ended(const Wait& wait) const {
  const State* const state = find(wait.offset);
  return state == nullptr || state->phase != wait.phase;
}

bool Mbarriers::is_missed(const Wait& wait) const {
  const State* const state = find(wait.offset);
  return state != nullptr && state->phase - wait.phase > 1;
}

std::string Mbarriers::account(std::size_t offset) const {
  const State* const found = find(offset);
  if (found == nullptr) return "it is not initialised";
  const State& state = *found;
  std::string what = SharedMemory::name_of(offset) + ": phase " + std::to_string(state.phase) +
                     " (parity " + std::to_string(state.phase % 2) +
                     "): " + std::to_string(state.pending) + " of " +
                     std::to_string(state.expected) + " arrivals pending";
  if (state.expected_bytes != 0 || state.due_bytes != 0) {
    what += ", expected " + std::to_string(state.expected_bytes) + " bytes, got " +
            std::to_string(state.expected_bytes - state.due_bytes);
  }
  return what;
}

std::string Mbarriers::fault_at_end() const {
  for (const auto& [offset, state] : states_) {
    if (state.due_bytes != 0) {
      return "the block ends while an mbarrier, initialised at " + state.site.text() +
             ", waits for bytes: " + account(offset);
    }
  }
  return "";
}

}  // namespace diglot::interpreter
