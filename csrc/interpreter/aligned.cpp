#include "interpreter/aligned.h"

namespace diglot::interpreter {

std::string Aligned::note(int thread, const char* what, Place place) {
  const std::uint64_t number = counts_[thread % kWarpgroup]++ - done_;
  if (number == steps_.size()) steps_.push_back({what, place, thread});
  Step& step = steps_[number];
  if (!(step.place == place)) {
    return std::string(what) + " where thread " + std::to_string(step.first_thread) +
           " of the warpgroup has executed " + step.what + " at " + Site(step.place).text() +
           ": all threads of a warpgroup must execute the same";
  }
  if (++step.threads == kWarpgroup) {
    steps_.pop_front();
    ++done_;
  }
  return "";
}

std::string Aligned::fault_at_end() const {
  if (steps_.empty()) return "";
  const Step& step = steps_.front();
  return std::string(step.what) + " was executed by " + std::to_string(step.threads) + " of the " +
         std::to_string(kWarpgroup) + " threads of a warpgroup, at " + Site(step.place).text();
}

}  // namespace diglot::interpreter
