// Philox-4x32-10: random bits as a function of a counter and a key (Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", 2011). Also the assignment of bits to an array's
// elements.
//
// Philox makes four words from a counter. The element with row-major index i gets word i % 4 of the
// counter offset + i / 4, a 64-bit sum that wraps around. The sum's low half is word 0 of Philox's
// counter, its high half word 1; words 2 and 3 are zero. The seed's low half is word 0 of the key,
// its high half word 1.
//
// Twin of triton_ops/lib/philox.py.
#pragma once

#include "diglot/platform.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

struct PhiloxWords {
  uint32_t word[4];
};

// The 64-bit product of 32-bit words: one instruction on the GPU.
DIGLOT_HOST_DEVICE uint64_t multiply_wide(uint32_t a, uint32_t b) { return uint64_t{a} * b; }

DIGLOT_HOST_DEVICE uint32_t high_word(uint64_t value) { return static_cast<uint32_t>(value >> 32); }
DIGLOT_HOST_DEVICE uint32_t low_word(uint64_t value) { return static_cast<uint32_t>(value); }

constexpr int kPhiloxRounds = 10;

// The keys of the rounds. All counters share them, so they are made once.
struct PhiloxKeys {
  uint32_t key[kPhiloxRounds][2];
};

DIGLOT_HOST_DEVICE PhiloxKeys philox_keys(uint32_t key0, uint32_t key1) {
  PhiloxKeys keys;
  DIGLOT_UNROLL
  for (int round = 0; round < kPhiloxRounds; ++round) {
    keys.key[round][0] = key0 + round * 0x9E3779B9u;
    keys.key[round][1] = key1 + round * 0xBB67AE85u;
  }
  return keys;
}

DIGLOT_HOST_DEVICE PhiloxKeys philox_keys(uint64_t seed) {
  return philox_keys(low_word(seed), high_word(seed));
}

DIGLOT_HOST_DEVICE PhiloxWords philox_4x32(PhiloxWords counter, const PhiloxKeys& keys) {
  DIGLOT_UNROLL
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = multiply_wide(0xD2511F53u, counter.word[0]);
    const uint64_t product1 = multiply_wide(0xCD9E8D57u, counter.word[2]);
    counter = {high_word(product1) ^ counter.word[1] ^ keys.key[round][0], low_word(product1),
               high_word(product0) ^ counter.word[3] ^ keys.key[round][1], low_word(product0)};
  }
  return counter;
}

// The words of one 64-bit counter.
DIGLOT_HOST_DEVICE PhiloxWords random_words(const PhiloxKeys& keys, uint64_t counter) {
  return philox_4x32({low_word(counter), high_word(counter), 0, 0}, keys);
}

// The bits of the elements from row-major index `index` on, a multiple of their number or
// of 4.
template <int kElements>
DIGLOT_DEVICE Vector<uint32_t, kElements> random_bits(const PhiloxKeys& keys, uint64_t offset,
                                                      int64_t index) {
  static_assert(kElements == 1 || kElements == 2 || kElements % 4 == 0);
  const uint64_t counter = offset + (static_cast<uint64_t>(index) >> 2);
  Vector<uint32_t, kElements> bits;
  if constexpr (kElements % 4 == 0) {
    DIGLOT_UNROLL
    for (int i = 0; i < kElements / 4; ++i) {
      const PhiloxWords words = random_words(keys, counter + i);
      DIGLOT_UNROLL
      for (int w = 0; w < 4; ++w) bits[4 * i + w] = words.word[w];
    }
  } else {
    const PhiloxWords words = random_words(keys, counter);
    const bool is_upper = index & 2, is_odd = index & 1;
    const uint32_t even = is_upper ? words.word[2] : words.word[0];
    const uint32_t odd = is_upper ? words.word[3] : words.word[1];
    if constexpr (kElements == 2) {
      bits[0] = even, bits[1] = odd;
    } else {
      bits[0] = is_odd ? odd : even;
    }
  }
  return bits;
}

}  // namespace diglot
