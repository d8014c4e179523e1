// Order by words that threads access atomically: releases, acquires and fences, with their scopes.
// PTX ISA, "Memory Consistency Model", release and acquire patterns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "interpreter/interpreter.h"
#include "interpreter/order.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

// Whether the scope that a thread of one block names includes another block.
bool holds(Scope scope, const Party& one, const Party& other);

// What strong writes to words have released.
class Flags {
 public:
  // Adds a clock to what a word passes on.
  void publish(const void* word, const Clock& clock, Scope scope, const Party& by,
               const Site& site);
  // A store ends earlier releases to a word; a read-modify-write does not.
  void overwrite(const void* word) { words_.erase(word); }
  // The clock that a thread acquires if it reads a word. Sets `narrow` to the place of a release
  // that the thread does not acquire, because a scope is too narrow.
  Clock collect(const void* word, Scope scope, const Party& reader, Site* narrow) const;
  bool has(const void* word) const { return words_.count(word) != 0; }
  void clear() { words_.clear(); }

 private:
  struct Released {
    Scope scope;
    Party by;
    bool is_by_several;  // blocks
    Clock clock;
    Site site;
  };
  std::unordered_map<const void*, std::vector<Released>> words_;
};

// The fences of a thread, which order its relaxed accesses.
class Fences {
 public:
  // A relaxed read of a word.
  void read(const Flags& flags, const void* word, Scope scope, const Party& reader);
  // The same for a value that is read only after this call: the next fence looks up the releases.
  void read_later(const Flags& flags, const void* word);
  // A relaxed write to a word.
  void write(Flags& flags, const void* word, Scope scope, const Party& writer, const Site& site);
  void fence(Order& order, int thread, Scope scope, const Party& party);

  Site narrow;  // a release that a scope was too narrow for

 private:
  static constexpr int kScopes = 3;  // the system is the device here
  static int index_of(Scope scope) { return std::min(static_cast<int>(scope), kScopes - 1); }

  struct Pending {
    const Flags* flags;
    const void* word;
  };
  std::vector<Pending> pending_;
  Clock released_[kScopes];   // by the last fence with at least that scope
  Clock collected_[kScopes];  // for a fence with that scope
};

}  // namespace diglot::interpreter
