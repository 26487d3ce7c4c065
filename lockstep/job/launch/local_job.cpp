#include "lockstep/job/launch/local_job.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <sstream>
#include <string_view>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/launch/cores.h"

namespace lockstep::internal {
namespace {

std::string random_id() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != sizeof value) throw system_error("reading random bytes", errno);
  return fmt::format("{:016x}", value);
}

JobOptions complete(JobOptions options) {
  if (options.id.empty()) options.id = random_id();
  if (options.run_id.empty()) options.run_id = options.id;
  if (!options.token) options.token = Token::generate();
  return options;
}

std::string set_by_user(const JobOptions& options, const char* name) {
  std::string value = EnvironmentReader().text(name).value_or("");
  for (const auto& [key, given] : options.environment) {
    if (key == name) value = given;
  }
  return value;
}

}  // namespace

LocalJob::LocalJob(JobOptions options)
    : options_(complete(std::move(options))),
      descriptors_(options_.ranks),
      token_fd_(options_.token->to_fd()),
      null_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
      cores_(available_cores()) {
  if (!null_) throw system_error("opening /dev/null", errno);
  threads_from_user_ = options_.threads_per_rank == 0 && !set_by_user(options_, "OMP_NUM_THREADS").empty();
  if (options_.virtual_local_rank) {
    const char* visible = process_environment("CUDA_VISIBLE_DEVICES");  // an empty one is not the same as none
    devices_ = devices_of(visible == nullptr ? std::nullopt : std::optional<std::string>(visible), options_.ranks);
  }
  const int share = options_.threads_per_rank > 0 ? options_.threads_per_rank : std::max(1, cores_ / options_.ranks);
  const double limit = options_.cgroup != nullptr ? options_.cgroup->limits().cpus : 0;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    // A quota of the cgroup may allow less than the set has.
    const bool by_set = options_.threads_per_rank == 0 && placement(rank).cores > 0;
    int threads = by_set ? std::min(placement(rank).cores, share) : share;
    // A thread more would have them all stand still for a part of each period.
    if (limit > 0 && options_.threads_per_rank == 0) threads = std::max(1, std::min(threads, static_cast<int>(limit)));
    threads_.push_back(threads_from_user_ ? set_by_user(options_, "OMP_NUM_THREADS") : std::to_string(threads));
  }
}

Placement LocalJob::placement(int local_rank) const {
  return options_.placements.empty() ? Placement{} : options_.placements.at(static_cast<std::size_t>(local_rank));
}

std::string LocalJob::description() const {
  return fmt::format("{} rank{} on this machine, {} thread{}{} ({} core{})", options_.ranks,
                     options_.ranks == 1 ? "" : "s", threads_.front(), threads_.front() == "1" ? "" : "s",
                     threads_from_user_ ? " each, set by OMP_NUM_THREADS" : " each", cores_, cores_ == 1 ? "" : "s");
}

std::vector<std::string> devices_of(const std::optional<std::string>& visible, int ranks) {
  std::vector<std::string> devices;
  if (!visible) {
    for (int rank = 0; rank < ranks; ++rank) devices.push_back(std::to_string(rank));
    return devices;
  }
  std::istringstream list(*visible);
  for (std::string device; std::getline(list, device, ',');) {
    std::erase(device, ' ');
    if (device.empty() || device == "-1") break;  // CUDA does not look behind it
    devices.push_back(device);
  }
  if (devices.empty()) return std::vector<std::string>(static_cast<std::size_t>(ranks), *visible);
  if (devices.size() < static_cast<std::size_t>(ranks)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} ranks need one GPU each (--virtual-local-rank), but CUDA_VISIBLE_DEVICES is '{}', "
                            "which has {}; start fewer ranks, or list more GPUs",
                            ranks, *visible, devices.size()));
  }
  devices.resize(static_cast<std::size_t>(ranks));
  return devices;
}

std::vector<std::string> merge_environment(const char* const* base, const Variables& changes) {
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
