#include "lockstep/train/checkpoint/step_files.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

std::filesystem::path directory_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

}  // namespace

std::filesystem::path step_path(const std::filesystem::path& directory, std::uint64_t step) {
  return directory / fmt::format("{}{:010}{}", kPrefix, step, kSuffix);
}

namespace internal {

std::optional<std::uint64_t> step_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || step_path("", step) != name) return std::nullopt;
  return step;
}

std::vector<StepFile> list_step_files(const std::filesystem::path& directory) {
  std::vector<StepFile> files;
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoints: the directory {} does not exist", directory.string()));
  }
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::optional<std::uint64_t> step = step_of(entries->path());
    std::error_code vanished;  // another rank may be tidying up
    if (step && std::filesystem::is_regular_file(entries->symlink_status(vanished))) {
      files.push_back({*step, entries->path()});
    }
  }
  if (error) throw system_error(fmt::format("listing {}", directory.string()), error.value());
  std::sort(files.begin(), files.end(),
            [](const StepFile& a, const StepFile& b) { return a.step != b.step ? a.step > b.step : a.path < b.path; });
  return files;
}

void remove_step_file(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::remove(file, error);
  if (error) throw system_error(fmt::format("removing {}", file.string()), error.value());
}

void keep_last_steps(const std::filesystem::path& newest_written, int count) {
  if (count < 1 || !step_of(newest_written)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoints: keep_last is {} for {}: it must be at least 1, and the file named as by "
                            "step_path()",
                            count, newest_written.string()));
  }
  int kept = 1;
  for (const StepFile& file : list_step_files(directory_of(newest_written))) {
    if (file.path.filename() == newest_written.filename()) continue;
    if (kept < count) {
      ++kept;
      continue;
    }
    remove_step_file(file.path);
  }
}

}  // namespace internal
}  // namespace lockstep
