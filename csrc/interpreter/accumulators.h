// The accumulators that a thread holds in registers for wgmma: from the first product that uses
// them to the wait that covers the last one. Also the accesses to them since the thread's last
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

  // Notes an access to the thread's own memory. Returns the fault, or "".
  std::string note(const char* begin, const char* end, const Site& site);
  void fence();

  // How many products the thread has issued.
  std::uint64_t issued() const { return issued_; }
  // Notes the issue of a product into `d`. `sums` are those of the warpgroup's product; they are
  // null before its first thread issues it, which sets them. Returns the fault, or "".
  std::string issue(const Product& product, int n, float* d, bool accumulate, const Site& site,
                    std::shared_ptr<Sums>& sums);
  void commit() { groups_.push_back(issued_); }
  // How many products a wait for all groups but the latest `newer` waits for.
  std::uint64_t awaited(int newer) const;
  // Gives their sums to accumulators that only the first `done` products use. Returns the fault, or
  // "".
  std::string take(std::uint64_t done);
  // "" if the thread has waited for all its products.
  std::string fault_at_end() const;

 private:
  struct Held {
    const char *begin, *end;
    std::shared_ptr<Sums> sums;  // null: no product is under way
    std::uint64_t last = 0;      // number of the last product that uses them
    int depth = 0;               // K of that product
    Site issued;                 // where that product was issued
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
  std::vector<Touch> touches_;  // since the last fence, of memory that was no accumulator then
  std::uint64_t issued_ = 0;
  std::vector<std::uint64_t> groups_;  // by group: products issued before its commit
};

}  // namespace diglot::interpreter
