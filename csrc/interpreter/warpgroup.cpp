#include "interpreter/warpgroup.h"

#include <cstring>
#include <utility>

#include "interpreter/block.h"
#include "interpreter/memory.h"

namespace diglot::interpreter {

namespace {

// Copies an operand's chunks out of shared memory. False after a fault.
bool gather(Block& block, const Operation& operation, const std::vector<std::uint32_t>& addresses,
            std::vector<char>& chunks) {
  chunks.resize(addresses.size() * kChunkBytes);
  for (std::size_t i = 0; i < addresses.size(); i += kLineChunks) {
    for (std::size_t j = i; j < i + kLineChunks; ++j) {
      const char* const chunk = block.shared().at(addresses[j]);
      if (chunk == nullptr) {
        block.fail_operation("its descriptor leaves shared memory: there is no address " +
                                 std::to_string(addresses[j]),
                             operation);
        return false;
      }
      if (!check_operation(block, operation, chunk, kChunkBytes, Access::kRead)) return false;
      std::memcpy(chunks.data() + j * kChunkBytes, chunk, kChunkBytes);
    }
  }
  return true;
}

std::string check_descriptors(const Instruction& instruction) {
  MatrixDescriptor descriptor;
  std::string fault;
  if (!instruction.product.has_registers_a) fault = decode(instruction.a, descriptor);
  if (!fault.empty()) return fault + " (of A)";
  fault = decode(instruction.b, descriptor);
  return fault.empty() ? "" : fault + " (of B)";
}

}  // namespace

std::string Instruction::name() const {
  return "wgmma.m64n" + std::to_string(n) + "k" + std::to_string(product.depth());
}

std::string Warpgroup::compare(const Instruction& instruction, const Step& step, int thread) const {
  const Instruction& first = step.instruction;
  const std::string of_thread = ", thread " + std::to_string(step.first_thread) + "'s, at " +
                                Site{nullptr, first.place}.text();
  if (!(instruction.place == first.place) || instruction.n != first.n) {
    return "wgmma while another thread of the warpgroup issues another" + of_thread;
  }
  const auto differs = [&](const char* what) {
    return std::string("wgmma with ") + what + " that differs from another" + of_thread +
           ": all threads of a warpgroup must give the same";
  };
  if (instruction.a != first.a) return differs("a descriptor of A");
  if (instruction.b != first.b) return differs("a descriptor of B");
  if (instruction.accumulate != first.accumulate) return differs("an `accumulate`");
  return "";
}

std::string Warpgroup::issue(Block& block, const Instruction& instruction,
                             const std::uint32_t* registers, float* d) {
  Thread& thread = block.thread();
  const std::size_t number = static_cast<std::size_t>(thread.accumulators->issued() - done_);
  if (number == steps_.size()) {
    const std::string fault = check_descriptors(instruction);
    if (!fault.empty()) return fault;
    steps_.push_back({instruction, thread.linear});
    if (registers != nullptr) steps_.back().registers.resize(4 * kWarpgroup);
  }
  Step& step = steps_[number];
  std::string fault = compare(instruction, step, thread.linear);
  if (!fault.empty()) return fault;
  fault = thread.accumulators->issue(instruction.product, instruction.n, d,
                                     {nullptr, instruction.place}, step.sums);
  if (!fault.empty()) return fault;
  if (registers != nullptr) {
    const int index = thread.linear % kWarpgroup;
    std::memcpy(step.registers.data() + 4 * index, registers, 4 * sizeof(std::uint32_t));
  }
  if (++step.issued == kWarpgroup) enqueue(block, thread.linear);
  return "";
}

void Warpgroup::enqueue(Block& block, int thread) {
  // All threads issue in one order, so that products become complete in that order too.
  const std::uint64_t number = block.thread().accumulators->issued() - 1;
  const Instruction& instruction = steps_[number - done_].instruction;
  Operation operation;
  operation.what = instruction.name();
  operation.site = {nullptr, instruction.place};
  operation.rank = block.rank();
  operation.thread = thread;
  operation.may_complete = [this, number] { return done_ == number; };
  operation.complete = [this, &block, operation] { run(block, operation); };
  block.cluster().queue().issue(std::move(operation));
}

void Warpgroup::run(Block& block, const Operation& operation) {
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  ++done_;
  const auto& [product, n, descriptor_a, descriptor_b, accumulate, place] = step.instruction;
  MatrixDescriptor descriptor;
  a_.resize(kProductRows * product.depth());
  if (product.has_registers_a) {
    unpack_a(product, step.registers.data(), a_.data());
  } else {
    decode(descriptor_a, descriptor);
    const auto addresses = chunk_addresses(descriptor, product.major_a, kProductRows);
    if (!gather(block, operation, addresses, chunks_)) return;
    unpack_a(product, chunks_.data(), a_.data());
  }
  b_.resize(n * product.depth());
  decode(descriptor_b, descriptor);
  if (!gather(block, operation, chunk_addresses(descriptor, product.major_b, n), chunks_)) return;
  unpack_b(product, n, chunks_.data(), b_.data());
  const bool truncates = options().truncates_fp8 && bytes_of(product.type_a) == 1;
  multiply(product, n, a_.data(), b_.data(), accumulate, truncates, step.sums->rows.data());
}

std::string Warpgroup::account() const {
  if (steps_.empty()) return "none is under way";
  const Step& step = steps_.front();
  return step.instruction.name() + " issued at " + Site{nullptr, step.instruction.place}.text() +
         " by " + std::to_string(step.issued) + " of the " + std::to_string(kWarpgroup) +
         " threads of a warpgroup";
}

}  // namespace diglot::interpreter
