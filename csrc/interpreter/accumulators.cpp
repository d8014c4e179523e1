#include "interpreter/accumulators.h"

namespace diglot::interpreter {

namespace {

template <typename Part>
bool overlaps(const Part& part, const char* begin, const char* end) {
  return begin < part.end && end > part.begin;
}

std::string fault_of_touch(const Site& touched) {
  return "accumulators are used by wgmma that the thread touched at " + touched.text() +
         ", with no wgmma_fence() after that";
}

}  // namespace

std::string Accumulators::note(const char* begin, const char* end, const Site& site) {
  bool is_held = false;
  for (Held& held : held_) {
    if (!overlaps(held, begin, end)) continue;
    if (held.sums != nullptr) {
      return "accumulators are touched before the wgmma_wait() that covers the wgmma issued at " +
             held.issued.text();
    }
    is_held = held.is_touched = true;
    held.touched = site;
  }
  if (is_held || !has_fenced_) return "";
  if (!touches_.empty() && touches_.back().end == begin) {
    touches_.back().end = end;
  } else if (touches_.size() < kMostTouches) {
    touches_.push_back({begin, end, site});
  }
  return "";
}

void Accumulators::fence() {
  has_fenced_ = true;
  touches_.clear();
  for (Held& held : held_) held.is_touched = false, held.depth = 0;
}

// The accumulators at `d`; those that lay there before are forgotten.
Accumulators::Held& Accumulators::hold(float* d, int n) {
  const char* const begin = reinterpret_cast<const char*>(d);
  const char* const end = reinterpret_cast<const char*>(d + n / 2);
  for (Held& held : held_) {
    if (held.begin == begin && held.end == end) return held;
  }
  Held made{begin, end, nullptr};
  for (const Touch& touch : touches_) {
    if (overlaps(touch, begin, end)) made.is_touched = true, made.touched = touch.site;
  }
  for (std::size_t i = held_.size(); i > 0; --i) {
    const Held& held = held_[i - 1];
    if (!overlaps(held, begin, end)) continue;
    if (held.is_touched) made.is_touched = true, made.touched = held.touched;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i - 1));
  }
  held_.push_back(made);
  return held_.back();
}

std::string Accumulators::issue(const Product& product, int n, float* d, bool accumulate,
                                const Site& site, std::shared_ptr<Sums>& sums) {
  if (!has_fenced_) return "wgmma before any wgmma_fence() of the thread";
  const char* const begin = reinterpret_cast<const char*>(d);
  const char* const end = reinterpret_cast<const char*>(d + n / 2);
  for (const Held& other : held_) {
    const bool is_same = other.begin == begin && other.end == end;
    if (other.sums != nullptr && !is_same && overlaps(other, begin, end)) {
      return "wgmma whose accumulators overlap those of the wgmma issued at " +
             other.issued.text() + ", of another n and not waited for";
    }
  }
  Held& held = hold(d, n);
  if (held.is_touched) return fault_of_touch(held.touched);
  if (held.sums == nullptr) {
    if (sums == nullptr) sums = std::make_shared<Sums>(n);
    held.sums = sums;
    if (accumulate) write_fragment(d, n, thread_, sums->rows.data());
  } else if (held.depth != 0 && held.depth != product.depth()) {
    return "wgmma of another shape than the one before into the same accumulators, with no "
           "wgmma_fence() between";
  } else if (sums == nullptr) {
    sums = held.sums;
  }
  if (sums != held.sums || sums->n != n) {
    return "wgmma whose accumulators are not those of the warpgroup's other threads";
  }
  held.last = issued_++;
  held.depth = product.depth();
  held.issued = site;
  return "";
}

std::uint64_t Accumulators::awaited(int newer) const {
  const std::size_t count = groups_.size(), kept = static_cast<std::size_t>(newer);
  return count > kept ? groups_[count - kept - 1] : 0;
}

std::string Accumulators::take(std::uint64_t done) {
  for (Held& held : held_) {
    if (held.sums == nullptr || held.last >= done) continue;
    if (held.begin < static_cast<const char*>(__builtin_frame_address(0))) {
      return "wgmma_wait() after the function returned whose accumulators the wgmma issued at " +
             held.issued.text() + " uses";
    }
    float* const d = reinterpret_cast<float*>(const_cast<char*>(held.begin));
    read_fragment(held.sums->rows.data(), held.sums->n, thread_, d);
    held.sums = nullptr;
  }
  return "";
}

std::string Accumulators::fault_at_end() const {
  for (const Held& held : held_) {
    if (held.sums == nullptr) continue;
    return "the thread ends with no wgmma_wait() that covers the wgmma issued at " +
           held.issued.text();
  }
  return "";
}

}  // namespace diglot::interpreter
