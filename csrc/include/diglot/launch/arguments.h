// The arguments of a planned launch: addresses, numbers, scratch. A plan does not hold their
// values. It holds objects of the types below, which find them in `Arguments` at each launch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "diglot/platform.cuh"

namespace diglot {

// A number as its caller gives it, exact as a float64 and as an integer; the launcher computes in
// one of the two.
struct NumberValue {
  double real = 0;
  int64_t integer = 0;
};

struct Arguments {
  cudaStream_t stream;
  void* const* addresses;  // of the call's tensors
  const NumberValue* numbers;
  char* scratch;
};

// The address of a tensor's data or of scratch, or of a place behind it; null by default.
template <typename T>
class Address {
 public:
  static constexpr int kNull = -1, kScratch = -2;

  Address() = default;
  explicit Address(int number, int64_t bytes = 0) : number_(number), bytes_(bytes) {}

  T* operator()(const Arguments& now) const {
    if (number_ == kNull) return nullptr;
    char* const base =
        number_ == kScratch ? now.scratch : static_cast<char*>(now.addresses[number_]);
    return reinterpret_cast<T*>(base + bytes_);
  }
  Address operator+(int64_t elements) const {
    return Address(number_, bytes_ + elements * static_cast<int64_t>(sizeof(T)));
  }
  template <typename Other>
  Address<Other> as() const {
    return Address<Other>(number_, bytes_);
  }

 private:
  int number_ = kNull;
  int64_t bytes_ = 0;
};

// A parameter that may be a float or an integer; as<Compute>() finds it in the type of the
// computation.
struct Number {
  int place = 0;

  template <typename Compute>
  auto as() const {
    return [place = place](const Arguments& now) {
      if constexpr (std::is_floating_point_v<Compute>) {
        return static_cast<Compute>(now.numbers[place].real);
      } else {
        return static_cast<Compute>(now.numbers[place].integer);
      }
    };
  }
};
// A float, or an integer, on which no plan depends. A launcher's parameters on which plans depend
// are plain double or int64_t.
struct Real : Number {
  double operator()(const Arguments& now) const { return now.numbers[place].real; }
};
struct Integer : Number {
  int64_t operator()(const Arguments& now) const { return now.numbers[place].integer; }
};

// The value at a launch of something that a plan holds: a value, or a function of `Arguments`.
template <typename Held>
decltype(auto) resolve(const Held& held, [[maybe_unused]] const Arguments& now) {
  if constexpr (std::is_invocable_v<const Held&, const Arguments&>) {
    return held(now);
  } else {
    return (held);
  }
}

}  // namespace diglot
