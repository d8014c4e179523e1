// Memory that a launch needs besides its tensors, and where a launcher gets it.
#pragma once

#include <stdexcept>
#include <string>

#include "diglot/launch.cuh"
#include "diglot/operand.h"

namespace diglot {

enum class Lifetime { kCall, kStream };

// Memory that a launch needs besides its tensors; of its leading bytes so many must be zero. For
// the lifetime of a stream that means: when the stream's memory is made.
struct Scratch {
  int64_t bytes = 0;
  int64_t zeroed = 0;
  Lifetime lifetime = Lifetime::kCall;
};

// A launcher needs scratch, and was given none.
struct ScratchNeeded {
  Scratch scratch;
};

// Where a launcher starts its kernels, and the scratch that it was given.
class Stream {
 public:
  Stream(cudaStream_t handle, const Operand* scratch) : handle_(handle), scratch_(scratch) {}
  operator cudaStream_t() const { return handle_; }
  // Asked for before the first launch.
  char* scratch(const Scratch& needed) const;

 private:
  cudaStream_t handle_;
  const Operand* scratch_;
};

// Of scratch that is kept by a stream, what a grid barrier takes.
constexpr int64_t kBarrierBytes = 16;

inline char* Stream::scratch(const Scratch& needed) const {
#if defined(DIGLOT_INTERPRETER)
  constexpr uintptr_t kAlignment = 16;
#else
  constexpr uintptr_t kAlignment = 256;
#endif
  if (Recording::innermost() != nullptr) return reinterpret_cast<char*>(kAlignment);
  if (scratch_ == nullptr) throw ScratchNeeded{needed};
  if (scratch_->dtype != DType::kUInt8 || scratch_->rank != 1 || scratch_->numel < needed.bytes) {
    throw std::invalid_argument("scratch must be a uint8 tensor of one dimension and at least " +
                                std::to_string(needed.bytes) + " elements, not " +
                                std::to_string(scratch_->numel));
  }
  if (reinterpret_cast<uintptr_t>(scratch_->data) % kAlignment != 0) {
    throw std::invalid_argument("scratch must be aligned to " + std::to_string(kAlignment) +
                                " bytes");
  }
  return scratch_->as<char>();
}

}  // namespace diglot
