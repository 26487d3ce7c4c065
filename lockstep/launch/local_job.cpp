#include "lockstep/launch/local_job.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string_view>
#include <system_error>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/launch/cores.h"
#include "lockstep/net/listener.h"
#include "lockstep/net/token.h"
#include "lockstep/observe/process_recorder.h"
#include "lockstep/store/store_server.h"

namespace lockstep::internal {
namespace {

const Duration kListenTimeout = std::chrono::seconds(5);
constexpr const char* kOuterJobsVariable = "LOCKSTEP_OUTER_JOBS";
constexpr std::uint64_t kGeneration = 0;  // this launcher does not restart ranks

std::string random_id() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != sizeof value) throw system_error("reading random bytes", errno);
  return fmt::format("{:016x}", value);
}

// Where the ports begin that the kernel gives to connections: such a port may be free now and taken later.
int first_ephemeral_port() {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first;
}

int free_port() {
  constexpr int kFirst = 15000;
  constexpr int kFirstOfOthers = 20000;  // ports derived from the jobs of other launchers; see launchers.h
  constexpr int kTries = 20;
  const int end = std::min(first_ephemeral_port(), kFirstOfOthers);
  std::minstd_rand random(std::random_device{}());
  for (int i = 0; i < kTries && end > kFirst + 1000; ++i) {
    const int port = std::uniform_int_distribution(kFirst, end - 1)(random);
    try {
      const Endpoint endpoint{"127.0.0.1", static_cast<std::uint16_t>(port)};
      return Listener::bind(endpoint, Deadline::after(kListenTimeout)).address().port();
    } catch (const Error&) {  // taken
    }
  }
  return Listener::bind({"127.0.0.1", 0}, Deadline::after(kListenTimeout)).address().port();
}

StoreServerOptions store_options(const Token& token, const std::string& job_id, int ranks) {
  StoreServerOptions options;
  options.token = token;
  options.job_id = job_id;
  options.identity = local_identity(-1, ranks, kGeneration);
  options.admission = admit_generation(kGeneration);
  // Two for every rank, and some for processes that the ranks start.
  options.limits.connections = std::max<std::size_t>(options.limits.connections, 2 * static_cast<std::size_t>(ranks));
  return options;
}

std::string set_by_user(const JobOptions& options, const char* name) {
  std::string value = EnvironmentReader().text(name).value_or("");
  for (const auto& [key, given] : options.environment) {
    if (key == name) value = given;
  }
  return value;
}

// The jobs around this one, as the cleanup looks for them (reaper.h).
std::string outer_jobs() {
  const EnvironmentReader reader;
  const auto job = reader.text("LOCKSTEP_JOB_ID");
  const auto around = reader.text(kOuterJobsVariable);
  return job ? fmt::format("LOCKSTEP_JOB_ID={}{}", *job, around ? " " + *around : "") : "";
}

// A rank's two pipes, its pidfd, its recording and spawn()'s report; its first connection to the store.
constexpr rlim_t kLeastOfRank = 6;
constexpr rlim_t kSpareOfRank = 2;  // further connections
constexpr rlim_t kOfLauncher = 32;

rlim_t open_now() {
  rlim_t count = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  return count;
}

}  // namespace

DescriptorLimit::DescriptorLimit(int ranks) {
  if (::getrlimit(RLIMIT_NOFILE, &before_) != 0) throw system_error("asking for the limit on descriptors", errno);
  const rlim_t own = open_now() + kOfLauncher;
  const rlim_t least = own + kLeastOfRank * static_cast<rlim_t>(ranks);
  if (before_.rlim_max < least) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} rank{} need the launcher to open {} files and connections, and its hard limit is {}; "
                            "raise that limit (in the shell: ulimit -Hn {}; systemd: LimitNOFILE=; docker: --ulimit "
                            "nofile=), or start fewer ranks",
                            ranks, ranks == 1 ? "" : "s", least, before_.rlim_max, least));
  }
  const rlim_t wanted = std::min(before_.rlim_max, least + kSpareOfRank * static_cast<rlim_t>(ranks));
  if (before_.rlim_cur >= wanted) return;
  const rlimit raised{.rlim_cur = wanted, .rlim_max = before_.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) != 0) throw system_error("raising the limit on descriptors", errno);
}

DescriptorLimit::~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

struct LocalJob::Parts {
  Parts(const std::string& job_id, int ranks) : store({"127.0.0.1", 0}, store_options(token, job_id, ranks)) {}

  Token token = Token::generate();
  UniqueFd token_fd = token.to_fd();
  UniqueFd null{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  StoreServer store;
};

LocalJob::LocalJob(JobOptions options)
    : options_(std::move(options)),
      descriptor_limit_(options_.ranks),
      id_(random_id()),
      cores_(available_cores()),
      parts_(std::make_unique<Parts>(id_, options_.ranks)),
      recordings_(id_, options_.ranks) {
  if (!parts_->null) throw system_error("opening /dev/null", errno);
  if (options_.master_port == 0) options_.master_port = free_port();
  threads_from_user_ = options_.threads_per_rank == 0 && !set_by_user(options_, "OMP_NUM_THREADS").empty();
  const int share = options_.threads_per_rank > 0 ? options_.threads_per_rank : std::max(1, cores_ / options_.ranks);
  threads_ = threads_from_user_ ? set_by_user(options_, "OMP_NUM_THREADS") : std::to_string(share);
}

LocalJob::~LocalJob() = default;

Command LocalJob::command(int rank, const std::string& path, const std::vector<std::string>& argv) const {
  const std::string rank_text = std::to_string(rank);
  const std::string size_text = std::to_string(options_.ranks);
  std::vector<std::pair<std::string, std::string>> changes{
      {"RANK", rank_text},
      {"LOCAL_RANK", rank_text},
      {"WORLD_SIZE", size_text},
      {"LOCAL_WORLD_SIZE", size_text},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", rank_text},
      {"ROLE_WORLD_SIZE", size_text},
      {"MASTER_ADDR", options_.master_addr},
      {"MASTER_PORT", std::to_string(options_.master_port)},
      {"LOCKSTEP_STORE", to_string(Endpoint{"127.0.0.1", parts_->store.port()})},
      {"LOCKSTEP_TOKEN_FD", std::to_string(parts_->token_fd.get())},
      {"LOCKSTEP_JOB_ID", id_},
      {"LOCKSTEP_GENERATION", std::to_string(kGeneration)},
      {"OMP_NUM_THREADS", threads_},
  };
  // A job inside a rank of another job ends with that job: the outer launcher finds its processes by this variable.
  if (const std::string outer = outer_jobs(); !outer.empty()) changes.emplace_back(kOuterJobsVariable, outer);
  // A rank writes to a pipe; rank 0 may use '\r' to redraw a line if a terminal is behind the pipe.
  if (rank == 0 && ::isatty(STDOUT_FILENO) == 1) changes.emplace_back("LOCKSTEP_TERMINAL", "1");
  std::vector<int> kept{parts_->token_fd.get()};
  if (const int fd = recordings_.fd(rank); fd >= 0) {
    kept.push_back(fd);
    changes.emplace_back(kFlightFdVariable, std::to_string(fd));
  }
  changes.insert(changes.end(), options_.environment.begin(), options_.environment.end());
  const bool reads_input = rank == 0 && ::isatty(STDIN_FILENO) == 0;
  return Command{.path = path,
                 .argv = argv,
                 .environment = merge_environment(environ, changes),
                 .keep_fds = std::move(kept),
                 .stdin_fd = reads_input ? -1 : parts_->null.get(),
                 .descriptor_limit = descriptor_limit_.before()};
}

Failure LocalJob::judge(int rank, const ExitStatus& status) const {
  if (status.ok()) return {};
  Failure failure{.text = describe(status)};
  if (status.signal == SIGKILL) failure.text += fmt::format(" ({})", oom_kills_.describe_kill(status.peak_bytes));
  const std::optional<FlightFailure> recorded = recordings_.failure(rank);
  if (!recorded || recorded->is_own) return failure;
  failure.blamed = recorded->peer;
  const ErrorKind kind = recorded->kind;
  if (kind == ErrorKind::peer_lost || kind == ErrorKind::aborted) failure.fault = Fault::consequence;
  if (kind == ErrorKind::desync || kind == ErrorKind::timeout) failure.fault = Fault::disagreement;
  return failure;
}

std::string LocalJob::description() const {
  return fmt::format("{} rank{} on this machine, {} thread{}{} ({} core{})", options_.ranks,
                     options_.ranks == 1 ? "" : "s", threads_, threads_ == "1" ? "" : "s",
                     threads_from_user_ ? " each, as OMP_NUM_THREADS says" : " each", cores_, cores_ == 1 ? "" : "s");
}

std::vector<std::string> merge_environment(const char* const* base,
                                           const std::vector<std::pair<std::string, std::string>>& changes) {
  std::map<std::string, std::string, std::less<>> changed;
  for (const auto& [name, value] : changes) changed[name] = value;
  std::vector<std::string> merged;
  for (; *base != nullptr; ++base) {
    const std::string_view entry(*base);
    if (changed.find(entry.substr(0, entry.find('='))) == changed.end()) merged.emplace_back(entry);
  }
  for (const auto& [name, value] : changed) merged.push_back(name + "=" + value);
  return merged;
}

}  // namespace lockstep::internal
