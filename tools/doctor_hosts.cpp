#include "tools/doctor_hosts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/pipe.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/inspect/compare_hosts.h"
#include "lockstep/job/launch/child_process.h"
#include "tools/run_over_ssh.h"
#include "tools/standard_output.h"

namespace lockstep::tools {

using namespace internal;

namespace {

constexpr std::string_view kTime = "lockstep-doctor-time";
constexpr std::string_view kFindings = "lockstep-doctor-findings";
constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A pipe in the place of standard output, while it lives.
class CapturedOutput {
 public:
  CapturedOutput() {
    std::fflush(stdout);
    auto [reader, writer] = make_pipe("the hosts' findings");
    reader_ = std::move(reader);
    before_.reset(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    if (::dup2(writer.get(), STDOUT_FILENO) < 0) throw system_error("redirecting standard output", errno);
  }
  ~CapturedOutput() { end(); }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  int fd() const { return reader_.get(); }
  void end() {
    if (before_) ::dup2(before_.get(), STDOUT_FILENO);
    before_.reset();
  }

 private:
  UniqueFd reader_;
  UniqueFd before_;
};

// What one line says. Others, of a shell's profile for example, say nothing.
void take(const std::string& line, std::vector<HostFindings>& hosts) {
  const double now = wall_seconds();
  std::istringstream words(line);
  std::string kind;
  std::size_t rank = 0;
  if (!(words >> kind >> rank) || rank >= hosts.size()) return;
  double time = 0;
  if (kind == kTime && words >> time) hosts[rank].clock_ahead_seconds = time - now;
  std::string rest;
  if (kind != kFindings || !std::getline(words, rest)) return;
  try {
    hosts[rank].findings = findings_of_line(rest);
  } catch (const Error&) {
    hosts[rank].findings.clear();  // it has told nothing
  }
}

void read_lines(int fd, std::vector<HostFindings>& hosts) {
  std::string text;
  std::string buffer(65536, '\0');
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    text.append(buffer, 0, static_cast<std::size_t>(got));
    for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      take(text.substr(0, end), hosts);
      text.erase(0, end + 1);
    }
    if (text.size() > kMostLineBytes) text.clear();
  }
}

}  // namespace

Findings check_hosts(const DoctorOptions& options) {
  occupy_standard_descriptors();
  RunOptions run;
  run.hosts = parse_hosts(options.hosts);
  std::vector<HostFindings> hosts;
  for (auto& [name, ranks] : run.hosts) {
    ranks = 1;
    hosts.push_back({.host = name});
  }
  run.remote_path = options.remote_path;
  run.given = {"--no-prefix"};
  // A rank's parent is the launcher of its host, wherever that is.
  run.agent.argv = {"sh", "-c", "exec /proc/$PPID/exe doctor --line \"$@\"", "sh"};
  if (!options.program.empty()) run.agent.argv.push_back(options.program);
  CapturedOutput output;
  std::thread reader([&] { read_lines(output.fd(), hosts); });
  try {
    run_over_ssh(run);
  } catch (...) {
    output.end();
    reader.join();
    throw;
  }
  output.end();
  reader.join();
  return compare_hosts(hosts);
}

void print_for_hosts(Findings (*check)(const DoctorOptions&), const DoctorOptions& options) {
  const int rank = EnvironmentReader().number("RANK").value_or(0);
  print(fmt::format("{} {} {:.6f}\n", kTime, rank, wall_seconds()));
  print(fmt::format("{} {} {}\n", kFindings, rank, line_of(check(options))));
}

}  // namespace lockstep::tools
