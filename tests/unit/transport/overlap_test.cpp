// Groups over the same connections that use different peers do not wait for each other.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <future>
#include <span>
#include <string_view>
#include <vector>

#include "tests/support/shared_meshes.h"

namespace overlap_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kPageBytes = 4096;

Deadline soon() { return Deadline::after(60s); }

// A page of zeros whose first reader stops there until release().
class StoppingPage {
 public:
  StoppingPage() {
    page_ = ::mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page_ != MAP_FAILED);
    REQUIRE(::pipe(reached_) == 0);
    REQUIRE(::pipe(released_) == 0);
    struct sigaction action {};
    action.sa_sigaction = stop;
    action.sa_flags = SA_SIGINFO;
    REQUIRE(::sigaction(SIGSEGV, &action, &before_) == 0);
  }
  ~StoppingPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(page_, kPageBytes);
    for (const int fd : {reached_[0], reached_[1], released_[0], released_[1]}) ::close(fd);
  }
  StoppingPage(const StoppingPage&) = delete;
  StoppingPage& operator=(const StoppingPage&) = delete;

  ByteSpan bytes() const { return {static_cast<const std::byte*>(page_), kPageBytes}; }
  void await_reader() const {
    char byte = 0;
    REQUIRE(::read(reached_[0], &byte, 1) == 1);
  }
  void release() const { REQUIRE(::write(released_[1], "r", 1) == 1); }

 private:
  static void stop(int, siginfo_t* info, void*) {
    if (info->si_addr < page_ || info->si_addr >= static_cast<std::byte*>(page_) + kPageBytes) ::abort();
    const int error = errno;
    char byte = 0;
    if (::write(reached_[1], "r", 1) != 1 || ::read(released_[0], &byte, 1) != 1) ::abort();
    ::mprotect(page_, kPageBytes, PROT_READ);
    errno = error;
  }

  inline static void* page_ = nullptr;
  inline static int reached_[2];
  inline static int released_[2];
  struct sigaction before_ {};
};

void receive(Mesh& mesh, int from, std::size_t bytes) {
  std::vector<std::byte> space(bytes);
  for (std::size_t got = 0; got < bytes;) {
    const std::size_t count = mesh.recv_some(from, std::span(space).subspan(got));
    got += count;
    if (count == 0) mesh.wait(std::array{Mesh::Interest{from, true, false}}, soon());
  }
}

void send(Mesh& mesh, int to, std::string_view word) {
  REQUIRE(mesh.send_some(to, std::as_bytes(std::span(word))) == word.size());
}

}  // namespace

TEST_CASE("a thread that is stopped within the stream of one peer holds up no group with another") {
  const SharedRanks links = connect_ranks_of_test(3);
  const auto stopped = open_group(links, "stopped", {0, 1}), free = open_group(links, "free", {0, 2}),
             waiting = open_group(links, "waiting", {0, 1});
  // Sleeps for data of rank 1 before its stream is held.
  auto waits = std::async(std::launch::async, [&] { receive(*waiting[0], 1, 5); });
  const StoppingPage page;
  auto sends = std::async(std::launch::async, [&] { return stopped[0]->send_some(1, page.bytes()); });
  page.await_reader();  // computes the checksum of the block
  auto exchanges = std::async(std::launch::async, [&] {
    for (int round = 0; round < 20; ++round) {
      // Arrives at rank 0 on the connection that is held, and nobody may wait for that.
      if (round == 10) send(*waiting[1], 0, "three");
      auto answers = std::async(std::launch::async, [&] {
        receive(*free[1], 0, 4);
        send(*free[1], 0, "back");
      });
      send(*free[0], 1, "here");
      receive(*free[0], 1, 4);
      answers.get();
    }
  });
  const bool is_free = exchanges.wait_for(20s) == std::future_status::ready;
  page.release();
  exchanges.get();
  CHECK(is_free);
  CHECK(sends.get() == kPageBytes);
  receive(*stopped[1], 0, kPageBytes);
  waits.get();  // by the thread that held the stream, if not before
}

}  // namespace overlap_test
