#include "interpreter/warpgroup.h"

#include <cstring>
#include <utility>

#include "interpreter/block.h"
#include "interpreter/memory.h"

namespace diglot::interpreter {

namespace {

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

std::string Warpgroup::compare(const Instruction& instruction, const Step& step) const {
  const Instruction& first = step.instruction;
  const std::string of_thread =
      ", thread " + std::to_string(step.first_thread) + "'s, at " + Site(first.place).text();
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
  std::string fault = compare(instruction, step);
  if (!fault.empty()) return fault;
  fault = thread.accumulators->issue(instruction.product, instruction.n, d, instruction.accumulate,
                                     instruction.place, step.sums);
  if (!fault.empty()) return fault;
  if (registers != nullptr) {
    const int index = thread.linear % kWarpgroup;
    std::memcpy(step.registers.data() + 4 * index, registers, 4 * sizeof(std::uint32_t));
  }
  if (component_ < 0) component_ = block.add_channel();
  Clock& clock = step.clocks[thread.warp() % kWarps];
  clock = Order::join(clock, block.release());
  if (++step.issued == kWarpgroup) enqueue(block);
  return "";
}

void Warpgroup::enqueue(Block& block) {
  // All threads issue in one order, so that products become complete in that order too.
  const std::uint64_t number = block.thread().accumulators->issued() - 1;
  const Instruction& instruction = steps_[number - done_].instruction;
  Operation operation(instruction.name(), instruction.place);
  operation.may_complete = [this, number] { return done_ == number; };
  operation.complete = [this, &block](const Operation& issued) { run(block, issued); };
  block.issue(std::move(operation));
}

// Copies the chunks of A or B out of shared memory. False after a fault.
bool Warpgroup::gather(Block& block, const Operation& operation, const Step& step, bool is_a) {
  const Product& product = step.instruction.product;
  const Major major = is_a ? product.major_a : product.major_b;
  const int extent = is_a ? kProductRows : step.instruction.n;
  MatrixDescriptor descriptor;
  decode(is_a ? step.instruction.a : step.instruction.b, descriptor);
  const std::vector<std::uint32_t> addresses = chunk_addresses(descriptor, major, extent);
  std::vector<const char*> chunks;
  for (const std::uint32_t address : addresses) {
    chunks.push_back(block.shared().at(address));
    if (chunks.back() != nullptr) continue;
    const std::string place = std::to_string(address);
    block.fail_operation("its descriptor leaves shared memory: there is no address " + place,
                         operation);
    return false;
  }
  Detector* const detector = block.cluster().detector();
  // Each warp reads its 16 rows of A and all of B. Only what other warps have released to it orders
  // it after their accesses.
  const int warps = detector == nullptr ? 1 : kWarps;
  for (int warp = 0; warp < warps; ++warp) {
    Issue issue = operation;
    issue.clock = step.clocks[warp];
    issue.thread = operation.thread / kWarpgroup * kWarpgroup + warp * kWarp;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const int number = static_cast<int>(i);
      const int row = major == Major::kK ? number / kLineChunks : number % (extent / 8) * 8;
      if (is_a && warps > 1 && row / 16 != warp) continue;
      const std::string fault =
          find_fault(block, issue, channel(done_), chunks[i], kChunkBytes, Access::kRead);
      if (fault.empty()) continue;
      block.fail_operation(fault, operation);
      return false;
    }
  }
  const std::string fault =
      detector == nullptr ? "" : detector->tiles().find_fault(chunks, major, extent);
  if (!fault.empty()) {
    block.fail_operation(fault, operation);
    return false;
  }
  chunks_.resize(chunks.size() * kChunkBytes);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    std::memcpy(chunks_.data() + i * kChunkBytes, chunks[i], kChunkBytes);
  }
  return true;
}

void Warpgroup::run(Block& block, const Operation& operation) {
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  ++done_;
  const Product& product = step.instruction.product;
  const int n = step.instruction.n;
  a_.resize(kProductRows * product.depth());
  if (product.has_registers_a) {
    unpack_a(product, step.registers.data(), a_.data());
  } else {
    if (!gather(block, operation, step, true)) return;
    unpack_a(product, chunks_.data(), a_.data());
  }
  b_.resize(n * product.depth());
  if (!gather(block, operation, step, false)) return;
  unpack_b(product, n, chunks_.data(), b_.data());
  const bool truncates = options().truncates_fp8 && bytes_of(product.type_a) == 1;
  multiply(product, n, a_.data(), b_.data(), step.instruction.accumulate, truncates,
           step.sums->rows.data());
}

std::string Warpgroup::account() const {
  if (steps_.empty()) return "none is under way";
  const Step& step = steps_.front();
  return step.instruction.name() + " issued at " + Site(step.instruction.place).text() + " by " +
         std::to_string(step.issued) + " of the " + std::to_string(kWarpgroup) +
         " threads of a warpgroup";
}

}  // namespace diglot::interpreter
