// What kernels call for Hopper's asynchronous machinery: the functions of the device library
// (include/diglot/sync, include/diglot/mma) in place of PTX. A misuse ends the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interpreter/interpreter.h"

namespace diglot::interpreter {

// Shared memory by 32-bit addresses. Those of another block of the cluster have its rank in them.
std::uint32_t shared_address(const void* shared, Place place);
std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank, Place place);
// The memory at an address.
const void* own_memory(std::uint32_t address, Place place);
// The address in another block's shared memory, by its rank in the cluster.
const void* shared_of_rank(const void* shared, int rank, Place place);

// `releases`: others then see what the thread has written.
void cluster_arrive(bool releases, Place place);
void cluster_wait(Place place);

void mbarrier_init(void* barrier, std::uint32_t arrivals, Place place);
void mbarrier_invalidate(void* barrier, Place place);
// Expects bytes, then arrives; either number may be 0. The address may be in another block.
void mbarrier_arrive(std::uint32_t barrier, std::uint32_t arrivals, std::uint32_t bytes,
                     Place place);
// A wait of the block's scope acquires nothing of other blocks' threads.
bool mbarrier_try_wait(const void* barrier, bool parity, Scope scope, Place place);
void mbarrier_wait(const void* barrier, bool parity, Scope scope, Place place);
// Acquires nothing. But what bulk loads and store_async overwrite later, those who arrived have
// read before.
void mbarrier_wait_for_readers(const void* barrier, bool parity, Place place);
void fence_mbarrier_init(Place place);

// Stores up to 16 bytes in a block of the cluster, and completes as many at its mbarrier.
void store_async(std::uint32_t to, const void* value, std::size_t bytes, std::uint32_t barrier,
                 Place place);
inline void store_async(std::uint32_t to, std::uint64_t value, std::size_t bytes,
                        std::uint32_t barrier, Place place) {
  store_async(to, &value, bytes, barrier, place);
}

// Copies of a few bytes from global to shared memory, in groups of the thread.
void copy_async(void* shared, const void* global, std::size_t bytes, Place place);
void commit_copies(Place place);
void wait_for_copies_before(int newer, Place place);
void wait_for_copies(Place place);

// A barrier of a part of a block. A thread that does not wait goes on at once.
void named_barrier(int number, int threads, bool waits, Place place);
void set_registers(int count, bool is_more, Place place);
// True in one lane of the mask.
bool elect_one(std::uint32_t mask, Place place);
void fence_async_proxy(Place place);
void fence_async_proxy_global(Place place);

}  // namespace diglot::interpreter
