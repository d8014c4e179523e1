// Who touched which byte of watched memory, and whether what they did was ordered.
//
// Bytes that have been through the same accesses share a history: the last write, and the accesses
// since that may still race with one to come. So an access of many bytes, or one thread after the
// other reading an array, costs a step for each run of such bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "interpreter/interpreter.h"
#include "interpreter/order.h"

namespace diglot::interpreter {

// Where an access was made: a return address, or a place of the source.
struct Site {
  const void* code = nullptr;
  Place place;

  Site() = default;
  explicit Site(const void* code) : code(code) {}
  Site(const Place& place) : place(place) {}

  bool operator==(const Site& other) const { return code == other.code && place == other.place; }
  std::string text() const;
};

// Who makes an access: a thread, or an asynchronous operation.
struct Actor {
  int component;               // the thread, or the channel that tells of the completion
  std::uint32_t epoch;         // of the component
  const Clock* clock;          // of the thread, or of the operation when it was issued
  bool is_async = false;       // through the async proxy
  const char* what = nullptr;  // "the bulk load"; null for a thread
  int rank = 0;                // of its block
  const Past* past = nullptr;  // of its launch; null if all is of one
  std::uint32_t issue = 0;     // tells operations of one component and epoch apart
};

class Races {
 public:
  // `name` names a thread of a group to another group's.
  using Name = std::function<std::string(std::uint32_t group, int thread, const Actor& to)>;
  // `locate` names a byte of a window by its offset: "byte 16 of `stages`".
  using Locate = std::function<std::string(std::size_t offset)>;
  Races(Space space, Name name, Locate locate)
      : space_(space),
        where_(space == Space::kShared ? "shared memory" : "global memory"),
        name_(std::move(name)),
        locate_(std::move(locate)),
        histories_(1) {}

  // Watches memory; what lies outside of all windows is not.
  void add_window(const char* begin, std::size_t bytes);
  void remove_window(const char* begin);

  // Notes an access. Returns an account of the fault that it makes, or "".
  std::string note(const Actor& actor, const void* address, std::size_t bytes, Access access,
                   const Site& site, Scope scope = Scope::kSystem);
  bool watches(const void* address) const;

  // The memory of a block with the components [first, last) ends. Returns an account of an access
  // by another component that the clock has not seen, or "". Any later touch of the window is a
  // fault.
  std::string close_window(const char* begin, const Clock& clock, int first, int last);

 private:
  static constexpr std::size_t kFew = 8, kPage = 1024;

  using Id = std::uint32_t;  // of a history; 0: never touched

  // How a byte was accessed: what accesses of a loop have in common.
  struct Manner {
    Site site;
    Access access;
    Scope scope;  // of a strong access
    bool is_async;
    std::string what;
  };
  struct Touch {
    std::uint32_t epoch = 0;  // 0: none
    std::uint32_t group = 0;
    int component = 0;
    int rank = 0;
    std::uint32_t manner = 0;
    std::uint32_t issue = 0;

    // A later touch races with both or with neither. An earlier one may race with one alone, since
    // operations of different issues have seen different accesses.
    bool is_like(const Touch& other) const {
      return epoch == other.epoch && group == other.group && component == other.component &&
             manner == other.manner;
    }
    bool operator==(const Touch& other) const { return is_like(other) && issue == other.issue; }
  };
  // Those since the last write. Some are left out: whatever races with them races with another too.
  struct Touches {
    std::vector<Touch> all;
    std::size_t prune_at = kFew;
    Counts seen;  // an owner that has seen these has seen all touches

    void clear() { all.clear(), prune_at = kFew, seen.reset(); }
  };
  struct History {
    Touch write;
    Touches reads, strong;      // plain reads, and strong accesses
    std::size_t bytes = 0;      // that have it
    std::uint32_t version = 0;  // grows with each change
  };
  // A touch that took bytes from one history to another.
  struct Step {
    Id from = 0, to = 0;
    std::uint32_t from_version = 0, to_version = 0;
    Touch touch;
  };
  struct Window {
    const char* begin;
    std::size_t bytes;
    std::vector<std::unique_ptr<Id[]>> pages;
    bool is_closed = false;

    bool has(const char* address) const { return address >= begin && address < begin + bytes; }
  };
  enum class Verdict { kOrdered, kRace, kNoFence };

  static constexpr std::size_t kSteps = 256, kRecent = 64;

  std::uint32_t manner_of(const Actor& actor, Access access, const Site& site, Scope scope);
  Window* window_of(const char* address);
  std::vector<Window>::iterator window_at(const char* begin);
  bool changes_nothing(History& history, const Touch& touch, const Actor& actor);
  Id follow(Id from, std::size_t bytes, const Touch& touch, const Actor& actor);
  void add(Touches& touches, const Touch& touch, const Actor& actor) const;
  void drop(Id id, std::size_t bytes);
  Id take();
  Verdict judge(const Touch& earlier, const Actor& actor) const;
  bool may_forget(const Touch& earlier, const Touch& later, const Actor& actor) const;
  bool find_fault(const Touch& earlier, const Touch& later, const Actor& actor);
  bool find_fault(Touches& earlier, const Touch& later, const Actor& actor);
  std::string name_of(const Touch& touch, const Actor& to) const;

  Space space_;
  const char* where_;
  Name name_;
  Locate locate_;
  std::vector<Window> windows_;
  std::vector<Manner> manners_;
  bool has_narrow_ = false;   // whether a strong access has a scope below the device
  Party first_{0, -1};        // the block that made the first access
  bool has_several_ = false;  // whether several blocks have made accesses
  std::unordered_multimap<std::size_t, std::uint32_t> manner_ids_;  // by hash
  std::uint32_t recent_[kRecent] = {};                              // manners, by hash
  std::vector<History> histories_;
  std::vector<Id> free_;
  Step steps_[kSteps];
  std::string fault_;
};

}  // namespace diglot::interpreter
