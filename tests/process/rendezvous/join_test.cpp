// Processes that find each other, and those that must not.
#include <filesystem>
#include <fstream>
#include <random>

#include "lockstep/base/format.h"
#include "lockstep/comm/net/listener.h"
#include "tests/process/rendezvous/worker_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace join_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// Free, and the one above it as well. Below those that the kernel gives to who asks for any, such as the tests beside.
std::uint16_t free_port() {
  std::random_device random;
  for (;;) {
    const auto port = static_cast<std::uint16_t>(std::uniform_int_distribution(10'000, 32'000)(random));
    try {
      const Listener here = Listener::bind({"127.0.0.1", port}, Deadline::after(5s));
      const Listener above = Listener::bind({"127.0.0.1", static_cast<std::uint16_t>(port + 1)}, Deadline::after(5s));
      return port;
    } catch (const Error& error) {
      if (!contains(error.what(), "in use")) throw;
    }
  }
}

// A home of its own for every job, so that the jobs' tokens differ.
struct Job {
  TemporaryDirectory home;
  std::uint16_t port = free_port();

  Variables variables(int rank, int size) const {
    return {{"HOME", home.path()},        {"RANK", std::to_string(rank)},        {"WORLD_SIZE", std::to_string(size)},
            {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}, {"TEST_TIMEOUT_MS", "20000"}};
  }
  WorkerProcess start(int rank, int size, Variables more = {}, const std::string& mode = "join") const {
    more.merge(variables(rank, size));
    return WorkerProcess({mode}, more);
  }
};

std::string joined(int rank, int size) {
  return fmt::format("joined as rank {0} of {1}, local rank {0} of {1}", rank, size);
}

void check_parts(const std::string& line, const std::vector<std::string>& parts) {
  CAPTURE(line);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(line, part));
  }
}

void check_all_joined(std::vector<WorkerProcess>& workers, const std::vector<int>& ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    CHECK(workers[i].line() == joined(ranks[i], static_cast<int>(ranks.size())));
    CHECK(workers[i].exit_code() == 0);
  }
}

}  // namespace

// feature: A-16, D-08
TEST_CASE("two and four processes, started by hand in any order, form a world") {
  for (const std::vector<int>& order : {std::vector<int>{0, 1}, {1, 0}, {3, 1, 0, 2}, {0, 1, 2, 3}}) {
    const Job job;
    std::vector<WorkerProcess> workers;
    for (const int rank : order) workers.push_back(job.start(rank, static_cast<int>(order.size())));
    check_all_joined(workers, order);
  }
}

// feature: B-02
TEST_CASE("processes meet in a file, and the last one removes it") {
  const Job job;
  const std::string path = job.home / "meet";
  std::vector<WorkerProcess> workers;
  for (const int rank : {1, 0, 2}) {
    workers.emplace_back(std::vector<std::string>{"join", fmt::format("file://{}?rank={}&world_size=3", path, rank)},
                         Variables{{"HOME", job.home.path()}});
  }
  check_all_joined(workers, {1, 0, 2});
  CHECK_FALSE(fs::exists(path));
}

// fault: 40
// feature: B-02
TEST_CASE("a file that killed processes left behind does not disturb the next run") {
  const Job job;
  const std::string url = "file://" + (job.home / "meet") + "?world_size=2&rank=";
  const Variables variables{{"HOME", job.home.path()}};
  {
    WorkerProcess killed({"hold", url + "1"}, variables);
    const Deadline deadline = Deadline::after(20s);
    while (!fs::exists(job.home / "meet") || fs::file_size(job.home / "meet") < 200) {
      REQUIRE_FALSE(deadline.expired());
      REQUIRE(killed.line(5ms) == "(nothing)");
    }
  }
  REQUIRE(fs::exists(job.home / "meet"));
  std::vector<WorkerProcess> workers;
  for (const int rank : {0, 1})
    workers.emplace_back(std::vector<std::string>{"join", url + std::to_string(rank)}, variables);
  check_all_joined(workers, {0, 1});
  CHECK_FALSE(fs::exists(job.home / "meet"));
}

TEST_CASE("torchrun's own store holds MASTER_PORT: the ranks meet beside it") {
  const Job job;
  const Listener agent_store = Listener::bind({"127.0.0.1", job.port}, Deadline::after(5s));
  std::vector<WorkerProcess> workers;
  for (const int rank : {0, 1}) workers.push_back(job.start(rank, 2, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  check_all_joined(workers, {0, 1});
}

TEST_CASE("a process with another token is told what to copy, and the others go on") {
  const Job job;
  const Job stranger;
  WorkerProcess first = job.start(0, 2);
  WorkerProcess intruder = job.start(1, 2, {{"HOME", stranger.home.path()}});
  check_parts(intruder.line(), {"error unauthorized", "copy ~/.lockstep/token", "LOCKSTEP_TOKEN_FILE"});
  CHECK(intruder.exit_code() == 3);
  WorkerProcess second = job.start(1, 2);
  CHECK(second.line() == joined(1, 2));
  CHECK(first.line() == joined(0, 2));
  CHECK(first.exit_code() == 0);
}

TEST_CASE("a token file that others can read stops the process before it connects") {
  const Job job;
  const std::string path = job.home / "token";
  std::ofstream(path) << std::string(64, 'a');
  fs::permissions(path, fs::perms::owner_read | fs::perms::others_read);
  WorkerProcess worker = job.start(1, 2, {{"LOCKSTEP_TOKEN_FILE", path}});
  check_parts(worker.line(), {"error unauthorized", path, "chmod 600"});
}

// fault: 44
// feature: A-07
TEST_CASE("different world sizes fail on both sides within seconds, with both values") {
  const std::pair<int, int> pairs[] = {{2, 3}, {3, 2}, {2, 4}};
  for (const auto& [size0, size1] : pairs) {
    const Job job;
    const TimePoint start = steady_clock().now();
    WorkerProcess rank0 = job.start(0, size0);
    WorkerProcess rank1 = job.start(1, size1);
    for (WorkerProcess* worker : {&rank0, &rank1}) {
      check_parts(worker->line(),
                  {"disagree about the world size", fmt::format("pid {})", rank0.pid()),
                   fmt::format("pid {})", rank1.pid()), fmt::format("with {}", size0), fmt::format("with {}", size1)});
      CHECK(worker->exit_code() == 3);
    }
    CHECK(steady_clock().now() - start < 10s);
  }
}

// fault: 43
// feature: A-06
TEST_CASE("a duplicate rank is refused at once, naming both, and the first claimant goes on") {
  for (const int rank : {0, 1}) {
    const Job job;
    WorkerProcess one = job.start(rank, 2, {}, "hold");
    WorkerProcess two = job.start(rank, 2, {}, "hold");
    WorkerProcess rest = job.start(1 - rank, 2, {}, "hold");
    CHECK(rest.line() == joined(1 - rank, 2));
    const std::string first = one.line();
    const std::string second = two.line();
    CHECK((first == joined(rank, 2)) != (second == joined(rank, 2)));
    check_parts(first == joined(rank, 2) ? second : first,
                {"error invalid_argument", fmt::format("rank {} is taken", rank), fmt::format("pid {}", one.pid()),
                 fmt::format("pid {}", two.pid())});
  }
}

// fault: 39
// feature: A-15
TEST_CASE("a port that a stranger holds is an error at once that names it") {
  const Job job;
  const Listener stranger = Listener::bind({"127.0.0.1", job.port}, Deadline::after(5s));
  const TimePoint start = steady_clock().now();
  WorkerProcess worker = job.start(0, 2);
  check_parts(worker.line(), {"error invalid_argument", fmt::format("127.0.0.1:{}", job.port), "in use",
                              fmt::format("process {} (process_rend", ::getpid())});
  CHECK(steady_clock().now() - start < 8s);
}

TEST_CASE("a master that is not there ends at the deadline with its address") {
  const Job job;
  const TimePoint start = steady_clock().now();
  WorkerProcess worker = job.start(1, 2, {{"TEST_TIMEOUT_MS", "300"}});
  check_parts(worker.line(), {"error timeout", fmt::format("127.0.0.1:{}", job.port), "Connection refused"});
  CHECK(worker.exit_code() == 3);
  CHECK(steady_clock().now() - start < 8s);
}

TEST_CASE("rank 0 names the ranks that did not come") {
  const Job job;
  WorkerProcess worker = job.start(0, 3, {{"TEST_TIMEOUT_MS", "300"}});
  check_parts(worker.line(), {"error timeout", "rank 0 waited", "ranks 1 and 2 did not join"});
}

}  // namespace join_test
