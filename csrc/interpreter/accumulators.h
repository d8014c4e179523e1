// What a thread holds in registers for wgmma: accumulators, from the first product that uses them
// to the wait that covers the last one, and what touched them since the thread's last
// wgmma_fence().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "interpreter/products.h"
#include "interpreter/races.h"

namespace diglot::interpreter {

// The sums of all threads of a warpgroup, by rows, while products under way use them.
struct Sums {
  explicit Sums(int n) : n(n), rows(static_cast<std::size_t>(kProductRows) * n) {}

  int n;
  std::vector<float> rows;
};

class Accumulators {
 public:
  explicit Accumulators(int thread) : thread_(thread) {}

  // An access to the thread's own memory. Returns what is wrong with it, or "".
  std::string note(const char* begin, const char* end, const Site& site);
  void fence();

  // The next product's number, of those that the thread has issued.
  std::uint64_t issued() const { return issued_; }
  // Notes the issue of a product into `d`. `sums` are those that the warpgroup's product uses, null
  // before its first thread says so. Returns what is wrong, or "".
  std::string issue(const Product& product, int n, float* d, bool accumulate, const Site& site,
                    std::shared_ptr<Sums>& sums);
  void commit() { groups_.push_back(issued_); }
  // How many products must be done before a wait for all but the latest `newer` groups returns.
  std::uint64_t awaited(int newer) const;
  // Gives the accumulators their sums, once `done` products are. Returns what is wrong, or "".
  std::string take(std::uint64_t done);
  // "" if all products have been waited for.
  std::string fault_at_end() const;

 private:
  struct Held {
    const char *begin, *end;
    std::shared_ptr<Sums> sums;  // null: no product is under way
    std::uint64_t last = 0;      // product that uses them
    int depth = 0;               // its K
    Site issued;                 // where
    bool is_touched = false;     // since the last fence
    Site touched;
  };
  struct Touch {
    const char *begin, *end;
    Site site;
  };
  static constexpr std::size_t kMostTouches = 64;

  Held& hold(float* d, int n);

  int thread_;  // of the warpgroup
  bool has_fenced_ = false;
  std::vector<Held> held_;
  std::vector<Touch> touches_;  // since the last fence, of memory that held nothing before
  std::uint64_t issued_ = 0;
  std::vector<std::uint64_t> groups_;  // how many products each ends after
};

}  // namespace diglot::interpreter
