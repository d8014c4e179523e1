// The exchange of data between ranks: by a push of packets, by a pull from workspaces, or by two
// shots. What a rank does with the ranks' data is a `Work`. Twin of
// triton_ops/lib/sync/exchange.py.
//
//   struct Work {
//     // Elements [first, first + kElements) of all ranks; those from n on do not exist. `is_there`
//     // is false if a peer did not come.
//     void take(const Vector<T, kElements> (&data)[kRanks], int64_t first, int64_t n,
//               bool is_there) const;
//   };
//
// Each rank takes n elements of every rank. All read the same elements, or rank r reads part r of
// several parts. Part p begins `pitch` elements behind part p - 1.
#pragma once

#include "diglot/sync/signal.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// Two blocks fit on an SM, so that all blocks of two groups run at once.
constexpr int kPushThreads = 512, kPullThreads = 256;
constexpr int kPulledBytes = 128;  // that a thread has in flight

DIGLOT_DEVICE float quiet_nan() { return __int_as_float(0x7fc00000); }

// The elements of an array from `first` on; zeros behind its end.
template <int kElements, typename T>
DIGLOT_DEVICE Vector<T, kElements> load_within(const T* array, int64_t first, int64_t n,
                                               bool is_aligned) {
  Vector<T, kElements> values;
  if (is_aligned && first + kElements <= n) {
    if constexpr (sizeof(values) == sizeof(uint2)) {  // one access, not one for each element
      const uint2 bits = *reinterpret_cast<const uint2*>(array + first);
      memcpy(&values, &bits, sizeof(bits));
      return values;
    }
    return load_vector<T, kElements>(array + first);
  }
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) {
    values[i] = first + i < n ? array[first + i] : convert<T>(0.f);
  }
  return values;
}

template <int kElements, typename T>
DIGLOT_DEVICE void store_within(T* array, int64_t first, int64_t n, bool is_aligned,
                                const Vector<T, kElements>& values) {
  if (is_aligned && first + kElements <= n) {
    store_vector(array + first, values);
  } else {
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (first + i < n) array[first + i] = values[i];
    }
  }
}

// The elements in the ranks' bits. One copy of all would put the bits into local memory.
template <int kElements, typename T, int kRanks, typename Bits>
DIGLOT_DEVICE void unpack_ranks(const Bits (&bits)[kRanks],
                                Vector<T, kElements> (&values)[kRanks]) {
  static_assert(sizeof(Bits) == kElements * sizeof(T));
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) memcpy(&values[r], &bits[r], sizeof(Bits));
}

template <typename T>
DIGLOT_DEVICE bool is_multiple_of(const T* address, int bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// The slot of packets of a sender, in the workspace at `slots`. There is one for each parity and
// sender. A slot is written again two launches later. By then its reader has ended the launch
// between, in which it sent packets that the writer has read.
DIGLOT_DEVICE Packets* slot_of(char* slots, int64_t slot_bytes, int parity, int ranks, int sender) {
  return reinterpret_cast<Packets*>(slots + (int64_t{parity} * ranks + sender) * slot_bytes);
}

// Waits for the packets at place i of all senders' slots, and fills data[sender] for each peer. A
// sender that did not come in time, or -1.
template <int kRanks>
DIGLOT_DEVICE int await_packets(char* slots, int64_t slot_bytes, int64_t i, const Signals& signals,
                                int rank, int ranks, uint2 (&data)[kRanks]) {
  const uint32_t flag = signals.flag();
  int missing = -1;
  Deadline deadline(signals.patience());
  do {
    missing = -1;
    DIGLOT_UNROLL
    for (int sender = 0; sender < kRanks; ++sender) {
      if (sender >= ranks || sender == rank) continue;
      const Packets* const slot = slot_of(slots, slot_bytes, signals.parity(), ranks, sender);
      const Packets seen = load_packets(slot + i);
      if (!seen.have(flag)) missing = sender;
      data[sender] = seen.data();
    }
  } while (missing >= 0 && !deadline.is_over());
  return missing;
}

// Push: each rank writes its data to all peers as packets, and takes what arrives. Slots lie
// `packets` bytes into a workspace. kHasParts: each peer gets its part of the input.
template <int kRanks, bool kHasParts, typename T, typename Work>
DIGLOT_DEVICE void push_and_take(SignalSpace* space, const Party& party, int64_t packets,
                                 int64_t slot_bytes, int64_t pitch, int64_t n, const T* input,
                                 const Work& work) {
  constexpr int kElements = sizeof(uint2) / sizeof(T);
  using Pair = Vector<T, kElements>;
  const int rank = party.rank, ranks = party.ranks;
  const bool is_aligned =
      is_multiple_of(input, sizeof(uint2)) && (!kHasParts || pitch % kElements == 0);
  const int64_t pairs = (n + kElements - 1) / kElements;
  const int64_t begin = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  // These loads are in flight while the epoch is.
  char* peers[kRanks];
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    peers[r] = reinterpret_cast<char*>(space->addresses[r < ranks ? r : rank]) + packets;
  }
  // What a peer gets of the input; without parts all get the same.
  constexpr int kSent = kHasParts ? kRanks : 1;
  Pair pushed[kSent];
  const auto load_pushed = [&](int64_t i) {
    DIGLOT_UNROLL
    for (int r = 0; r < kSent; ++r) {
      const T* const part = input + (kHasParts ? (r < ranks ? r : rank) * pitch : 0);
      pushed[r] = load_within<kElements>(part, i * kElements, n, is_aligned);
    }
  };
  load_pushed(begin);
  Signals signals(space, party);
  for (int64_t i = begin; i < pairs; i += step) {
    DIGLOT_UNROLL
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer >= ranks || peer == rank) continue;
      uint2 bits;
      memcpy(&bits, &pushed[kHasParts ? peer : 0], sizeof(bits));
      store_packets(slot_of(peers[peer], slot_bytes, signals.parity(), ranks, rank) + i,
                    Packets::make(bits, signals.flag()));
    }
    load_pushed(i + step);
  }
  char* const own = reinterpret_cast<char*>(space) + packets;
  const T* const mine = input + (kHasParts ? rank * pitch : 0);
  for (int64_t i = begin; i < pairs; i += step) {
    const Pair kept = load_within<kElements>(mine, i * kElements, n, is_aligned);
    uint2 data[kRanks];
    DIGLOT_UNROLL
    for (int sender = 0; sender < kRanks; ++sender) memcpy(&data[sender], &kept, sizeof(kept));
    const int missing = await_packets(own, slot_bytes, i, signals, rank, ranks, data);
    if (missing >= 0) signals.give_up(missing);
    Pair values[kRanks];
    unpack_ranks(data, values);
    work.take(values, i * kElements, n, missing < 0);
  }
}

// Copies a block's share of n elements to an aligned array. kTile: accesses of a tile; blocks take
// tiles by turns.
template <int kThreads, int kLoads, typename T>
DIGLOT_DEVICE void copy_share(const T* from, T* to, int64_t n, bool is_aligned) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  constexpr int64_t kTile = int64_t{kLoads} * kThreads;
  const int64_t vectors = n / kElements;
  const int64_t begin = blockIdx.x * kTile + threadIdx.x, step = gridDim.x * kTile;
  if (is_aligned) {
    for (int64_t first = begin; first < vectors; first += step) {
      // Loads past the end load the last one again: unconditional loads are in flight at once.
      uint4 bits[kLoads];
      DIGLOT_UNROLL
      for (int l = 0; l < kLoads; ++l) {
        const int64_t i = first + l * kThreads;
        bits[l] =
            load_at_once(reinterpret_cast<const uint4*>(from) + (i < vectors ? i : vectors - 1));
      }
      DIGLOT_UNROLL
      for (int l = 0; l < kLoads; ++l) {
        const int64_t i = first + l * kThreads;
        if (i < vectors) reinterpret_cast<uint4*>(to)[i] = bits[l];
      }
    }
  } else {
    for (int64_t first = begin; first < vectors; first += step) {
      for (int64_t i = first; i < first + kTile && i < vectors; i += kThreads) {
        Vector<T> values;
        for (int e = 0; e < kElements; ++e) values[e] = from[i * kElements + e];
        store_vector(to + i * kElements, values);
      }
    }
  }
  if (vectors / kTile % gridDim.x == blockIdx.x) {  // the rest, less than a vector
    for (int64_t e = vectors * kElements + threadIdx.x; e < n; e += kThreads) to[e] = from[e];
  }
}

// The workspaces of all ranks.
template <int kRanks>
DIGLOT_DEVICE void load_owners(const SignalSpace* space, const Party& party,
                               char* (&owners)[kRanks]) {
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    owners[r] = reinterpret_cast<char*>(space->addresses[r < party.ranks ? r : party.rank]);
  }
}

// Takes n elements of every rank. A block takes tiles of neighbouring vectors, the same that
// `copy_share` has copied.
template <int kRanks, typename T, typename Work>
DIGLOT_DEVICE void take_share(const T* const (&sources)[kRanks], int64_t n, bool have_met,
                              const Work& work) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  constexpr int kLoads = kPulledBytes / kAccessBytes / kRanks;
  constexpr int64_t kTile = int64_t{kLoads} * kPullThreads;
  const int64_t vectors = n / kElements;
  for (int64_t first = blockIdx.x * kTile + threadIdx.x; first < vectors;
       first += gridDim.x * kTile) {
    uint4 bits[kLoads][kRanks];
    DIGLOT_UNROLL
    for (int l = 0; l < kLoads; ++l) {
      const int64_t i = first + l * kPullThreads;
      DIGLOT_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        // Unconditional loads are in flight at once. A thread's own first vector stands for those
        // behind the end, as `work` may overwrite what others take.
        bits[l][r] =
            load_at_once(reinterpret_cast<const uint4*>(sources[r]) + (i < vectors ? i : first));
      }
    }
    DIGLOT_UNROLL
    for (int l = 0; l < kLoads; ++l) {
      const int64_t i = first + l * kPullThreads;
      if (i >= vectors) continue;
      Vector<T> values[kRanks];
      unpack_ranks(bits[l], values);
      work.take(values, i * kElements, n, have_met);
    }
  }
  if (vectors / kTile % gridDim.x == blockIdx.x) {  // the rest, less than a vector
    for (int64_t e = vectors * kElements + threadIdx.x; e < n; e += kPullThreads) {
      Vector<T, 1> values[kRanks];
      DIGLOT_UNROLL
      for (int r = 0; r < kRanks; ++r) values[r] = {sources[r][e]};
      work.take(values, e, n, have_met);
    }
  }
}

// Pull: each rank reads all ranks' data. With kIsStaged, a block first copies its share of each
// part to the rank's own workspace, `source` bytes behind its begin, into one of two buffers of
// `buffer_bytes`. Otherwise all ranks' inputs lie at `source` in the workspaces. Then a closing
// meeting keeps each rank from changing its input while others still read it. `parts`: 1, or as
// many as ranks.
template <int kRanks, bool kIsStaged, typename T, typename Work>
DIGLOT_DEVICE void pull_and_take(SignalSpace* space, const Party& party, int64_t source,
                                 int64_t buffer_bytes, int64_t parts, int64_t pitch, int64_t n,
                                 const T* input, const Work& work) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  constexpr int kLoads = kPulledBytes / kAccessBytes / kRanks;
  const int rank = party.rank, ranks = party.ranks;
  char* owners[kRanks];
  load_owners(space, party, owners);
  Signals signals(space, party);
  if (kIsStaged) source += signals.parity() * buffer_bytes;
  const bool is_aligned =
      is_multiple_of(input, kAccessBytes) && (parts == 1 || pitch % kElements == 0);
  // How far a part lies behind the one before in a workspace.
  const int64_t distance = kIsStaged ? (n + kElements - 1) / kElements * kElements : pitch;
  const int64_t own_part = parts == 1 ? 0 : rank;
  // An aligned input is read where it is.
  const T* const own = kIsStaged && is_aligned
                           ? input + own_part * pitch
                           : reinterpret_cast<const T*>(reinterpret_cast<char*>(space) + source) +
                                 own_part * distance;
  const T* sources[kRanks];
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    const auto* const theirs = reinterpret_cast<const T*>(owners[r] + source);
    sources[r] = r == rank ? own : theirs + own_part * distance;
  }
  if (kIsStaged) {
    auto* const staging = reinterpret_cast<T*>(reinterpret_cast<char*>(space) + source);
    for (int64_t part = 0; part < parts; ++part) {
      if (is_aligned && parts > 1 && part == rank) continue;  // no peer reads it
      copy_share<kPullThreads, kLoads>(input + part * pitch, staging + part * distance, n,
                                       is_aligned);
    }
  }
  const bool have_met = signals.meet(kOpening);
  take_share(sources, n, have_met, work);
  if (!kIsStaged) signals.meet(kClosing);
}

// --- reductions
// -----------------------------------------------------------------------------------

struct Sum {
  static DIGLOT_DEVICE float apply(float a, float b) { return a + b; }
};
// NaN goes on, as in torch.maximum.
struct Maximum {
  static DIGLOT_DEVICE float apply(float a, float b) { return a > b || a != a ? a : b; }
};
struct Minimum {
  static DIGLOT_DEVICE float apply(float a, float b) { return a < b || a != a ? a : b; }
};

// Reduces the ranks' elements in the order of the ranks. Every rank takes the same steps, so that
// all have the same bits.
template <typename Op, int kRanks, int kElements, typename T>
DIGLOT_DEVICE void reduce_ranks(const Vector<T, kElements> (&data)[kRanks], int ranks,
                                bool is_there, float (&sums)[kElements]) {
  DIGLOT_UNROLL
  for (int sender = 0; sender < kRanks; ++sender) {
    if (sender >= ranks) continue;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float value = convert<float>(data[sender][i]);
      sums[i] = sender == 0 ? value : Op::apply(sums[i], value);
    }
  }
  if (!is_there) {
    DIGLOT_UNROLL
    for (float& sum : sums) sum = quiet_nan();
  }
}

// A Work that stores the reductions, in one output or in those of all ranks.
template <typename T, typename Op, int kOutputs = 1>
struct Reduction {
  T* outs[kOutputs];
  int ranks;
  float divisor;

  template <int kRanks, int kElements>
  DIGLOT_DEVICE void take(const Vector<T, kElements> (&data)[kRanks], int64_t first, int64_t n,
                          bool is_there) const {
    float sums[kElements];
    reduce_ranks<Op>(data, ranks, is_there, sums);
    Vector<T, kElements> results;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      results[i] = convert<T>(divisor == 1 ? sums[i] : sums[i] / divisor);
    }
    DIGLOT_UNROLL
    for (int r = 0; r < kOutputs; ++r) {
      if (r == 0 || r < ranks) store_within(outs[r], first, n, true, results);
    }
  }
};

// A Work that stores the ranks' elements one behind the other. Those of a rank begin `pitch`
// elements behind those of the rank before. None goes behind the end of the output.
template <typename T>
struct Gathering {
  T* out;
  int64_t pitch, end;
  int ranks;
  bool is_aligned;  // for any access
  T lacking;        // stands where a peer's data lack

  template <int kRanks, int kElements>
  DIGLOT_DEVICE void take(const Vector<T, kElements> (&data)[kRanks], int64_t first, int64_t n,
                          bool is_there) const {
    DIGLOT_UNROLL
    for (int sender = 0; sender < kRanks; ++sender) {
      if (sender >= ranks) continue;
      Vector<T, kElements> values = data[sender];
      if (!is_there) {
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) values[i] = lacking;
      }
      const int64_t begin = sender * pitch, left = end - begin;
      store_within(out + begin, first, n < left ? n : left, is_aligned, values);
    }
  }
};

// Elements of one of `parts` parts of n elements. Each part begins at a multiple of 16 bytes. The
// last ones may be shorter, or empty.
template <typename T>
DIGLOT_HOST_DEVICE int64_t elements_of_part(int64_t n, int64_t parts) {
  constexpr int64_t kElements = kAccessBytes / sizeof(T);
  return (n + parts * kElements - 1) / (parts * kElements) * kElements;
}

// Fills the tiles of n elements that the block would take.
template <int kRanks, typename T>
DIGLOT_DEVICE void fill_share(T* to, int64_t n, T value) {
  constexpr int64_t kTile = int64_t{kPulledBytes} / sizeof(T) / kRanks * kPullThreads;
  for (int64_t begin = blockIdx.x * kTile; begin < n; begin += gridDim.x * kTile) {
    const int64_t end = begin + kTile < n ? begin + kTile : n;
    for (int64_t e = begin + threadIdx.x; e < end; e += kPullThreads) to[e] = value;
  }
}

// Where the inputs and outputs of two shots lie: in the rank's own memory; or the inputs, or both,
// at the same places of all ranks' workspaces.
enum class Shots { kStaged, kInPlace, kDirect };

// Two shots: each rank reduces its part of all ranks' inputs, as reduce_scatter does. Then all
// ranks pull the reduced parts, as all_gather does. Links so carry 2 / ranks of what one pull of
// everything takes. All ranks' inputs lie at `source`. The reduced part lies in the rank's buffer
// at `staging`, in its own place. The second meeting also keeps each rank from changing its input
// while others still read it.
//
// If staged, nobody reads a peer's input: each rank stores what belongs to a peer's part in that
// peer's buffer, in the sender's place. A buffer is written again two launches later. By then this
// rank has ended the launch between, in which it waited for all others: so they have ended the one
// before. After a fault a rank waits for nobody, so it stores nothing and arrives nowhere.
//
// Direct shots need no second pull: each rank stores its part in all ranks' outputs. A block that
// lacks data stores none, and does not come to the second meeting. So its peers lack theirs, too.
// An output may be the input: only the block that stores an element has read it, on all ranks.
template <int kRanks, Shots kShots, typename T, typename Op>
DIGLOT_DEVICE void reduce_in_two_shots(SignalSpace* space, const Party& party, int64_t source,
                                       int64_t staging, int64_t buffer_bytes, int64_t n,
                                       const T* input, float divisor, T* out) {
  constexpr bool kIsStaged = kShots == Shots::kStaged;
  constexpr int kLoads = kPulledBytes / kAccessBytes / kRanks;
  const int rank = party.rank, ranks = party.ranks;
  const int64_t pitch = elements_of_part<T>(n, ranks);
  const auto count_of = [&](int part) {
    const int64_t left = n - part * pitch;
    return left < 0 ? 0 : left < pitch ? left : pitch;
  };
  char* owners[kRanks];
  load_owners(space, party, owners);
  Signals signals(space, party);
  staging += signals.parity() * buffer_bytes;
  char* const own = reinterpret_cast<char*>(space);
  auto* const buffer = reinterpret_cast<T*>(own + staging);
  const bool is_aligned = is_multiple_of(input, kAccessBytes);
  if (kIsStaged && !signals.has_failed_before()) {
    for (int step = 1; step <= ranks; ++step) {  // not all ranks store to one at once
      const int part = (rank + step) % ranks;
      if (is_aligned && part == rank) continue;  // an aligned part is read where it is
      auto* const theirs = reinterpret_cast<T*>(space->addresses[part] + staging);
      copy_share<kPullThreads, kLoads>(input + part * pitch, theirs + rank * pitch, count_of(part),
                                       is_aligned);
    }
  }
  const T *sources[kRanks], *reduced[kRanks];
  DIGLOT_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    const int64_t place = (r < ranks ? r : rank) * pitch;
    sources[r] = !kIsStaged ? reinterpret_cast<const T*>(owners[r] + source) + rank * pitch
                 : is_aligned && r == rank ? input + rank * pitch
                                           : buffer + place;
    reduced[r] = reinterpret_cast<const T*>(owners[r] + staging) + place;
  }
  const bool have_met = signals.meet(kOpening);
  if constexpr (kShots == Shots::kDirect) {
    if (have_met) {
      Reduction<T, Op, kRanks> reduction{{}, ranks, divisor};
      const int64_t target = reinterpret_cast<char*>(out) - own;
      DIGLOT_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        reduction.outs[r] = reinterpret_cast<T*>(owners[r] + target) + rank * pitch;
      }
      take_share(sources, count_of(rank), true, reduction);
      if (signals.meet(kClosing)) return;
    }
    for (int part = 0; part < ranks; ++part) {
      fill_share<kRanks>(out + part * pitch, count_of(part), convert<T>(quiet_nan()));
    }
    return;
  }
  take_share(sources, count_of(rank), have_met,
             Reduction<T, Op>{{buffer + rank * pitch}, ranks, divisor});
  const bool are_reduced = signals.meet(kClosing);
  take_share(reduced, pitch, are_reduced,
             Gathering<T>{out, pitch, n, ranks, true, convert<T>(quiet_nan())});
}

}  // namespace diglot
