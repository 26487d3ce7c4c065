#include "lockstep/base/observe/process_recorder.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/stack_recorder.h"

namespace lockstep::internal {
namespace {

FlightMemory open_memory(const FlightIdentity& identity) {
  try {
    const EnvironmentReader reader;
    if (const auto fd = reader.number(kFlightFdVariable)) return FlightMemory::inherit(*fd);
    const auto directory = reader.text(kFlightDirectoryVariable);
    if (directory && identity.rank >= 0) {
      make_flight_directory(*directory);
      return FlightMemory::make_file(*directory + "/" + flight_file_name(identity.rank), identity);
    }
  } catch (const Error& error) {
    log_warning(std::string(error.what()) + "; the operations of this rank are not recorded");
  }
  return FlightMemory::make_private(identity);
}

}  // namespace

std::string flight_file_name(int rank) { return "rank_" + std::to_string(rank) + ".flight"; }

bool is_flight_file_name(std::string_view name) {
  constexpr std::string_view kBegin = "rank_";
  constexpr std::string_view kEnd = ".flight";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size()) return false;
  name = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

void make_flight_directory(const std::string& path) {
  std::filesystem::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();  // "recordings/"
  std::error_code ignored;                                    // mkdir() below fails then
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), ignored);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw system_error("making the directory " + path + " for flight recordings", errno);
  }
}

FlightRecorder& process_recorder(const FlightIdentity& identity) {
  // Leaked on purpose: threads may still record while static destructors run.
  static FlightRecorder& recorder = *[&] {
    auto* made = new FlightRecorder(open_memory(identity));
    if (stacks::StackArea* stacks = made->memory().stacks()) start_stack_recorder(*stacks);
    return made;
  }();
  return recorder;
}

bool is_watched() {
  static const bool watched = EnvironmentReader().text(kFlightFdVariable).has_value();
  return watched;
}

std::uint64_t note_name(std::string_view name) {
  const std::uint64_t hash = hash_of(name);
  if (hash != 0) process_recorder().add_name(hash, name);
  return hash;
}

std::string noted_name(std::uint64_t name) { return process_recorder().names().text_of(name); }

}  // namespace lockstep::internal
