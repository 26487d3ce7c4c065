#include "tools/jobs_command.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/job/inspect/job_table.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/signal_relay.h"
#include "tools/jobs_of_hosts.h"
#include "tools/seconds_range.h"
#include "tools/standard_output.h"

namespace lockstep::tools {

using namespace internal;

namespace {

// Reads keys one by one and without showing them, while it lives.
class RawTerminal {
 public:
  RawTerminal() : is_terminal_(::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!is_terminal_) return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  ~RawTerminal() {
    if (is_terminal_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  bool is_terminal() const { return is_terminal_; }

 private:
  termios before_{};
  bool is_terminal_;
};

// Whether to go on: false after 'q' or a signal.
bool wait_for(Deadline deadline, const RawTerminal& terminal, SignalRelay& signals) {
  pollfd set[] = {{signals.fd(), POLLIN, 0}, {terminal.is_terminal() ? STDIN_FILENO : -1, POLLIN, 0}};
  while (!deadline.expired()) {
    if (::poll(set, 2, deadline.poll_timeout_ms()) <= 0) continue;
    if (set[0].revents != 0) {
      while (signals.take() != 0) {
      }
      return false;
    }
    char key = 0;
    if (set[1].revents != 0 && (::read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q')) return false;
  }
  return true;
}

template <class Options>
void add_place(CLI::App* command, Options& options) {
  command->add_option("--rdzv-endpoint", options.rdzv_endpoint,
                      "Show only the job whose launchers meet at HOST:PORT; works from any host");
  command->add_option("--rdzv-id", options.rdzv_id, "The job's name at that endpoint (default 'default')");
}

template <class Options>
std::vector<Job> find(const Options& options) {
  if (options.rdzv_endpoint.empty()) return find_jobs_of_hosts();
  return {find_job_at(outside_job(options.rdzv_endpoint, options.rdzv_id))};
}

int tell(const Error& error) {
  say_on_standard_error(error.what(), LogLevel::error);
  return EXIT_FAILURE;
}

}  // namespace

CLI::App* add_ps(CLI::App& app, PsOptions& options) {
  CLI::App* ps = app.add_subcommand("ps", "Show this user's jobs on this machine, and their ranks on other hosts");
  ps->add_flag("-l,--long", options.ranks, "Show a line for each rank");
  ps->add_flag("--json", options.json, "Print JSON");
  add_place(ps, options);
  ps->footer("Examples:\n  lockstep ps --long\n  lockstep ps --json\n");
  ps->prefix_command(false);
  return ps;
}

int ps_command(const PsOptions& options) try {
  const std::vector<Job> jobs = find(options);
  const std::string text = options.json ? json_of(jobs) : table_of(jobs, {.ranks = options.ranks});
  print(text);
  return EXIT_SUCCESS;
} catch (const Error& error) {
  return tell(error);
}

CLI::App* add_top(CLI::App& app, TopOptions& options) {
  CLI::App* top = app.add_subcommand("top", "Show this user's jobs on this machine, refreshed every second; q ends it");
  top->add_option("--interval", options.interval_seconds, "Seconds between refreshes (default 1)")
      ->check(seconds_range(0.1, 3600));
  top->add_flag("--once", options.once, "Measure for one interval, print one table, and end");
  add_place(top, options);
  top->footer("Examples:\n  lockstep top --interval 5\n  lockstep top --once\n");
  top->prefix_command(false);
  return top;
}

int top_command(const TopOptions& options) try {
  SignalRelay signals;
  const RawTerminal terminal;
  const bool redraw = ::isatty(STDOUT_FILENO) == 1 && !options.once;
  std::vector<Job> before = find(options);
  TimePoint looked = steady_clock().now();
  while (true) {
    const auto interval = std::chrono::duration<double>(options.interval_seconds);
    if (!wait_for(Deadline::after(std::chrono::duration_cast<Duration>(interval)), terminal, signals)) break;
    const TimePoint now = steady_clock().now();
    std::vector<Job> jobs = find(options);
    const std::string table = table_of(jobs, {.ranks = true, .before = &before, .seconds = seconds(now - looked)});
    // To the top left, and nothing of the previous table below.
    const std::string text = redraw ? "\033[H\033[J" + table : table;
    if (!print(text) || options.once) break;
    before = std::move(jobs);
    looked = now;
  }
  return EXIT_SUCCESS;
} catch (const Error& error) {
  return tell(error);
}

}  // namespace lockstep::tools
