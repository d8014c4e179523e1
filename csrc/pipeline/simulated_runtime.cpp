#if defined(DIGLOT_INTERPRETER)

#include "pipeline/simulated_runtime.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

namespace diglot::pipeline {

struct Mark {
  bool is_done = false;
  bool is_timed = false;
  double seconds = 0;
};

class Simulation {
 public:
  Simulation(int streams, uint64_t seed) : queues_(streams), weights_(streams), random_(seed) {
    // Runs nearly all work of one random stream before the next stream's, or mixes all alike.
    const int ratio = std::array{1, 8, 64}[draw(3)];
    std::vector<int> order(streams);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    for (int i = 0, weight = 1; i < streams; ++i) {
      weights_[order[i]] = weight;
      if (weight < (1 << 20)) weight *= ratio;
    }
    eagerness_ = static_cast<int>(draw(3));
  }

  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

  std::shared_ptr<Mark> mark_of(const std::shared_ptr<Mark>& mark) {
    const std::lock_guard lock(mutex_);
    return mark;
  }

  bool is_done(const Mark& mark) {
    const std::lock_guard lock(mutex_);
    return mark.is_done;
  }

  // Work, done once a mark is done if there is one.
  struct Task {
    std::function<void()> work;
    std::shared_ptr<Mark> after;
  };

  void enqueue(int stream, std::function<void()> work, std::shared_ptr<Mark> after = nullptr) {
    std::unique_lock lock(mutex_);
    queues_[stream].push_back({std::move(work), std::move(after)});
    for (int steps = eagerness_ == 0 ? 0 : static_cast<int>(draw(4 * eagerness_)); steps > 0;) {
      steps = step() ? steps - 1 : 0;
    }
  }

  void record(int stream, std::shared_ptr<Mark>& into, bool is_timed) {
    auto mark = std::make_shared<Mark>();
    mark->is_timed = is_timed;
    {
      const std::lock_guard lock(mutex_);
      into = mark;
    }
    enqueue(stream, [this, mark] {
      mark->seconds = now();
      mark->is_done = true;
    });
  }

  // Does tasks until a condition holds.
  template <typename Condition>
  void wait_until(const Condition& holds) {
    dawdle();
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (holds()) return;
        if (!step()) throw std::logic_error("the streams wait for what is never done");
      }
      std::this_thread::yield();
    }
  }

  bool is_empty(int stream) const { return queues_[stream].empty(); }

 private:
  uint64_t draw(uint64_t below) { return random_() % below; }

  // Sometimes gives the other thread time to go on before a wait.
  void dawdle() {
    bool does;
    {
      const std::lock_guard lock(mutex_);
      does = draw(4) == 0;
    }
    if (does) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

  // Does the first task of a stream. False if every first task waits for a mark.
  bool step() {
    int64_t total = 0;
    std::vector<int> weights(queues_.size());
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      const Task* const first = queues_[i].empty() ? nullptr : &queues_[i].front();
      const bool waits = first != nullptr && first->after != nullptr && !first->after->is_done;
      total += weights[i] = first == nullptr || waits ? 0 : weights_[i];
    }
    if (total == 0) return false;
    int chosen = 0;
    for (auto point = static_cast<int64_t>(draw(total)); point >= weights[chosen];) {
      point -= weights[chosen++];
    }
    const Task task = std::move(queues_[chosen].front());
    queues_[chosen].pop_front();
    task.work();
    return true;
  }

  std::mutex mutex_;
  std::vector<std::deque<Task>> queues_;
  std::vector<int> weights_;
  std::mt19937_64 random_;
  int eagerness_;  // how much work is done before a thread waits for it
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

namespace {

uint64_t seed() {
  const char* const text = std::getenv("DIGLOT_PIPELINE_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

}  // namespace

bool Event::is_done() const {
  const auto mark = simulation_->mark_of(mark_);
  return mark == nullptr || simulation_->is_done(*mark);
}

void Event::synchronize() const {
  const auto mark = simulation_->mark_of(mark_);
  simulation_->wait_until([&] { return mark == nullptr || mark->is_done; });
}

void Stream::wait(const Event& event) {
  simulation_->enqueue(number_, [] {}, simulation_->mark_of(event.mark_));
}

void Stream::record(Event& event, bool is_timed) {
  simulation_->record(number_, event.mark_, is_timed);
}

void Stream::run(std::function<void(cudaStream_t)> function) {
  simulation_->enqueue(number_, [function = std::move(function)] { function(nullptr); });
}

void Stream::synchronize() {
  simulation_->wait_until([&] { return simulation_->is_empty(number_); });
}

Runtime::Runtime(int, int slots, cudaStream_t, bool)
    : simulation_(std::make_unique<Simulation>(2 + slots, seed())) {
  loading = Stream(simulation_.get(), 0);
  storing = Stream(simulation_.get(), 1);
  for (int slot = 0; slot < slots; ++slot) computing.emplace_back(simulation_.get(), 2 + slot);
}

void Runtime::synchronize() {
  for (Stream* stream : {&loading, &storing}) stream->synchronize();
  for (Stream& stream : computing) stream.synchronize();
}

Runtime::~Runtime() = default;

double Runtime::now() const { return simulation_->now(); }

double Runtime::seconds(const Event& event) const {
  const auto mark = simulation_->mark_of(event.mark_);
  if (mark == nullptr || !mark->is_done) throw std::logic_error("the time of what was not done");
  if (!mark->is_timed) throw std::logic_error("the time of what keeps none");
  return mark->seconds;
}

}  // namespace diglot::pipeline

#endif
