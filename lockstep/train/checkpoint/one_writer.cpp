#include "lockstep/train/checkpoint/one_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"

namespace lockstep::internal {
namespace {

constexpr Duration kLookForTurn = std::chrono::milliseconds(5);

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// When this process started, in seconds since the machine did; nothing without /proc.
std::optional<double> process_start() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;
  double ticks = 0;  // since the machine started
  if (!(fields >> ticks)) return std::nullopt;
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Whether a set was written since then. On the same machine its monotonic clock decides; of another one there is only
// the file's time.
bool is_written_since(double start, const std::map<std::string, std::string>& written, const struct stat& status) {
  const auto boot = written.find("boot"), uptime = written.find("uptime_s");
  // A second less is lost to the clock's grain.
  if (boot != written.end() && uptime != written.end() && boot->second == boot_id()) {
    const Origin origin("the manifest of a checkpoint");
    return static_cast<double>(checked_decimal(uptime->second, "time of a save", origin)) + 1 >= start;
  }
  const double start_of_wall_clock = seconds_of(CLOCK_REALTIME) - (seconds_of(CLOCK_BOOTTIME) - start);
  return static_cast<double>(status.st_mtim.tv_sec) + 1 >= start_of_wall_clock;
}

}  // namespace

std::map<std::string, std::string> writer_identity(const EnvironmentReader& environment) {
  const auto rank = environment.text("RANK"), size = environment.text("WORLD_SIZE");
  if (!rank || !size || *size == "1") return {};
  std::string job;
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"}) {
    job += environment.text(name).value_or("") + "/";
  }
  return {{"job", job}, {"rank", *rank}};
}

std::map<std::string, std::string> moment_of_writing() {
  return {{"boot", boot_id()}, {"uptime_s", std::to_string(static_cast<std::int64_t>(seconds_of(CLOCK_BOOTTIME)))}};
}

std::uint64_t SaveNumbers::next(const std::filesystem::path& set) {
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = numbers_.try_emplace(set, forgotten_);
  const std::uint64_t number = ++found->second;
  if (!is_new) return number;
  order_.push_back(set);
  if (order_.size() <= kMost) return number;
  const auto oldest = numbers_.find(order_.front());
  forgotten_ = std::max(forgotten_, oldest->second);
  numbers_.erase(oldest);
  order_.pop_front();
  return number;
}

std::size_t SaveNumbers::size() const {
  const std::lock_guard lock(mutex_);
  return numbers_.size();
}

SaveNumbers& save_numbers() {
  static SaveNumbers numbers;
  return numbers;
}

WriterTurn::WriterTurn(const std::filesystem::path& directory, Deadline deadline)
    : directory_(directory.empty() ? "." : directory) {
  make_set_parent(directory_);
  lock_.reset(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) throw system_error("opening " + directory_.string(), errno);
  while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // a file system without locks
    if (deadline.expired()) {
      throw Error(ErrorKind::timeout, fmt::format("saving into {}: timed out while other processes were saving into it",
                                                  directory_.string()));
    }
    std::this_thread::sleep_for(kLookForTurn);
  }
}

bool WriterTurn::is_saved(std::uint64_t step, const std::map<std::string, std::string>& identity,
                          std::uint64_t number) const {
  if (identity.empty()) return false;
  const std::filesystem::path set = set_path(directory_, step);
  struct stat status {};
  const std::optional<double> start = process_start();
  if (!start || ::stat((set / kManifestName).c_str(), &status) != 0) return false;
  try {
    const SetReader reader(set);
    const auto& written = reader.manifest().written;
    if (!is_written_since(*start, written, status)) return false;
    const auto job = written.find("job"), rank = written.find("rank"), save = written.find("save");
    if (job == written.end() || rank == written.end() || save == written.end()) return false;
    const std::string where = set.string();
    const auto its_number = checked_decimal(save->second, "number of a save", Origin(where));
    return job->second == identity.at("job") && rank->second != identity.at("rank") &&
           std::cmp_greater_equal(its_number, number);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace lockstep::internal
