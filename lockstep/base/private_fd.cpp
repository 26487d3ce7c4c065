#include "lockstep/base/private_fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace lockstep::internal {
namespace {

// Larger numbers are not tracked; the kernel gives the lowest that is free.
constexpr int kMostFds = 1 << 20;
constexpr int kWordBits = 64;

// One bit a descriptor. Unwritten pages take no memory.
std::array<std::atomic<std::uint64_t>, kMostFds / kWordBits> g_private;
std::atomic<int> g_words{0};  // those in use are below
::pthread_mutex_t g_fork_mutex = PTHREAD_MUTEX_INITIALIZER;

std::atomic<std::uint64_t>& word_of(int fd) { return g_private[static_cast<std::size_t>(fd / kWordBits)]; }
std::uint64_t bit_of(int fd) { return std::uint64_t{1} << (fd % kWordBits); }

void lock_fork() { ::pthread_mutex_lock(&g_fork_mutex); }
void unlock_fork() { ::pthread_mutex_unlock(&g_fork_mutex); }

// Calls only what a child of a process with threads may call.
void forget_in_child() {
  int null = -1;
  for (int word = 0; word < g_words.load(std::memory_order_relaxed); ++word) {
    std::uint64_t bits = g_private[static_cast<std::size_t>(word)].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) {
      const int fd = word * kWordBits + std::countr_zero(bits);
      if (null >= 0) {
        ::dup3(null, fd, O_CLOEXEC);
        continue;
      }
      // Closed first, so that a number is free even at the limit of descriptors.
      ::close(fd);
      null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      if (null < 0 || null == fd) continue;
      ::dup3(null, fd, O_CLOEXEC);
      ::close(null);
      null = fd;
    }
  }
  unlock_fork();
}

}  // namespace

PrivateFd::ForkLock::ForkLock() { lock_fork(); }
PrivateFd::ForkLock::~ForkLock() { unlock_fork(); }

UniqueFd PrivateFd::adopt(int fd) {
  [[maybe_unused]] static const int registered = ::pthread_atfork(lock_fork, unlock_fork, forget_in_child);
  if (fd < 0 || fd >= kMostFds) return UniqueFd(fd);
  word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
  int words = g_words.load(std::memory_order_relaxed);
  while (words <= fd / kWordBits && !g_words.compare_exchange_weak(words, fd / kWordBits + 1)) {
  }
  return UniqueFd(fd);
}

bool PrivateFd::close(int fd) {
  if (fd >= kMostFds || (word_of(fd).load(std::memory_order_relaxed) & bit_of(fd)) == 0) return false;
  const ForkLock lock;
  word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed);
  ::close(fd);
  return true;
}

}  // namespace lockstep::internal
