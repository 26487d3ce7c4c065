// Processes that die while they join, and who learns of it, when.
#include <random>

#include "lockstep/base/format.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/net/token.h"
#include "tests/process/rendezvous/worker_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace deaths_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

// Three ranks of which the last does not come, so that the others wait.
struct Job {
  TemporaryDirectory home;
  std::string token = write_token();
  std::string store;  // of a launcher; empty: rank 0 hosts one
  std::uint16_t port = Listener::bind({"127.0.0.1", 0}, Deadline::after(5s)).address().port();

  std::string write_token() const {
    const std::string path = home / "token";
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const std::string digits(2 * Token::kBytes, 'c');
    if (::write(fd.get(), digits.data(), digits.size()) < 0) throw system_error("writing the token", errno);
    return path;
  }
  // node: processes with different ones see nothing of each other but through the store.
  WorkerProcess start(int rank, const std::string& node = "", int size = 3) const {
    Variables variables{{"LOCKSTEP_TOKEN_FILE", token}, {"RANK", std::to_string(rank)},
                        {"LOCKSTEP_NODE", node},        {"WORLD_SIZE", std::to_string(size)},
                        {"TEST_TIMEOUT_MS", "20000"},   {"TEST_NOTICE_MS", "20"},
                        {"MASTER_ADDR", "127.0.0.1"},   {"MASTER_PORT", std::to_string(port)}};
    if (!store.empty()) variables["LOCKSTEP_STORE"] = store;
    return WorkerProcess({"join"}, variables);
  }
};

// Reads what the worker says until one line has the text.
std::string line_with(WorkerProcess& worker, const std::string& text) {
  for (;;) {
    std::string line = worker.line();
    if (line.empty() || line == "(nothing)" || contains(line, text)) return line;
  }
}

void wait_until_it_misses(WorkerProcess& worker, const std::string& ranks) {
  const std::string line = line_with(worker, "for " + ranks + " of 3 to join");
  CAPTURE(line);
  REQUIRE(contains(line, ranks));
}

void check_error(WorkerProcess& worker, const std::string& kind, const std::vector<std::string>& parts) {
  const std::string line = line_with(worker, "error ");
  CAPTURE(line);
  CHECK(contains(line, "error " + kind));
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(line, part));
  }
}

}  // namespace

TEST_CASE("a rank that is killed while others wait is named to them at once, also from another host") {
  for (const std::string node : {"", "other"}) {
    CAPTURE(node);
    const Job job;
    WorkerProcess rank0 = job.start(0);
    WorkerProcess rank1 = job.start(1, node);
    wait_until_it_misses(rank0, "rank 2");
    wait_until_it_misses(rank1, "rank 2");
    rank1.send_signal(SIGKILL);
    const TimePoint start = steady_clock().now();
    check_error(rank0, "peer_lost", {"rank 1 (host ", fmt::format("pid {}) has ended while joining", rank1.pid())});
    CHECK(steady_clock().now() - start < (node.empty() ? 2s : 4s));  // 0.25 s and 3 s where nothing else runs
    CHECK(rank0.exit_code() == 3);
  }
}

TEST_CASE("when the rank that hosts the store is killed, the others name it at once") {
  for (const std::string node : {"", "other"}) {
    CAPTURE(node);
    const Job job;
    WorkerProcess rank0 = job.start(0);
    WorkerProcess rank1 = job.start(1, node);
    wait_until_it_misses(rank1, "rank 2");
    rank0.send_signal(SIGKILL);
    const TimePoint start = steady_clock().now();
    check_error(rank1, "peer_lost", {"rank 0 (host ", fmt::format("pid {})", rank0.pid())});
    CHECK(steady_clock().now() - start < 2s);
  }
}

TEST_CASE("all that wait name the rank that died first, not those that left because of it") {
  const Job job;
  std::vector<WorkerProcess> ranks;
  for (int rank = 0; rank < 5; ++rank) ranks.push_back(job.start(rank, rank % 2 == 0 ? "even" : "odd", 6));
  for (WorkerProcess& each : ranks) {
    REQUIRE(contains(line_with(each, "for rank 5 of 6 to join"), "rank 5"));
  }
  ranks[3].send_signal(SIGKILL);
  for (const int rank : {0, 1, 2, 4}) {
    check_error(ranks[static_cast<std::size_t>(rank)], "peer_lost", {fmt::format("rank 3 (host "), "has ended"});
  }
}

TEST_CASE("a rank that is started again takes its place, in a store that has outlived the first attempt") {
  Job job;
  WorkerProcess launcher({"serve"}, {{"LOCKSTEP_TOKEN_FILE", job.token}});
  job.store = "127.0.0.1:" + launcher.line();
  {
    WorkerProcess rank1 = job.start(1);  // nobody else is there to see it die
    wait_until_it_misses(rank1, "ranks 0 and 2");
  }
  {
    WorkerProcess rank1 = job.start(1);
    wait_until_it_misses(rank1, "ranks 0 and 2");
    WorkerProcess rank0 = job.start(0);
    wait_until_it_misses(rank1, "rank 2");
    wait_until_it_misses(rank0, "rank 2");
    rank1.send_signal(SIGKILL);
    check_error(rank0, "peer_lost", {"rank 1 (host ", fmt::format("pid {})", rank1.pid())});
  }
  std::vector<WorkerProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(job.start(rank));
  for (WorkerProcess& rank : ranks) wait_until_it_misses(rank, "rank 2");
  ranks.push_back(job.start(2, "other"));  // it follows those who were there before
  for (int rank = 0; rank < 3; ++rank) {
    const std::string line = line_with(ranks[static_cast<std::size_t>(rank)], "joined");
    CHECK(contains(line, fmt::format("joined as rank {} of 3", rank)));
  }
}

TEST_CASE("whoever waits says for whom, once and then more rarely") {
  const Job job;
  WorkerProcess rank1 = job.start(1);
  CHECK(contains(line_with(rank1, "waited"), "rank 1 has waited 0 s for rank 0, which hosts the job's store"));
  WorkerProcess rank0 = job.start(0);
  wait_until_it_misses(rank0, "rank 2");
  int lines = 0;
  while (contains(rank0.line(700ms), "for rank 2 of 3")) ++lines;
  CHECK(lines <= 7);  // after 40, 80, 160 ms and so on
}

}  // namespace deaths_test
