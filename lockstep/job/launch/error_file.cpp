#include "lockstep/job/launch/error_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/open_for_writing.h"

namespace lockstep::internal {
namespace {

constexpr const char* kVariable = "TORCHELASTIC_ERROR_FILE";
constexpr std::size_t kMaxLineBytes = 2048;

// The first line, without what a terminal would obey.
std::string printable_line(const std::string& text) {
  std::string line = text.substr(0, std::min(text.find('\n'), kMaxLineBytes));
  std::erase_if(line, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return line;
}

// Below /proc it is memory of a launcher around this one, which stays where it is.
void replace_error(const std::string& path, const std::string& text) {
  if (!path.starts_with("/proc/")) {
    AtomicFile file(path, {.mode = kSharedMode, .survives_power_cut = false});
    file.write(std::as_bytes(std::span(text)));
    return file.publish();
  }
  const std::string doing = "writing " + path;
  const UniqueFd fd = open_as_it_is(path);
  const int error = fd ? resize_file(fd.get(), 0) : errno;
  if (error != 0) throw system_error(doing, error);
  write_all(fd.get(), text, doing);
}

}  // namespace

ErrorFile::ErrorFile() : fd_(::memfd_create("lockstep-error", MFD_CLOEXEC)) {
  if (!fd_) throw memory_file_error("making a memory file for a rank's error", errno);
}

// Not /dev/fd/N, which is another file in a process that has closed this one.
std::string ErrorFile::path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get()); }

std::string ErrorFile::error() const {
  std::string text(kMaxBytes, '\0');
  const ssize_t got = ::pread(fd_.get(), text.data(), text.size(), 0);
  if (got <= 0) return "";
  text.resize(static_cast<std::size_t>(got));
  return error_in_file(text);
}

// {"message": {"message": "ValueError: ...", "extraInfo": {...}}} or {"message": "..."}
std::string error_in_file(const std::string& text) {
  const nlohmann::json content = nlohmann::json::parse(text, nullptr, false);
  if (!content.is_object() || !content.contains("message")) return "";
  const nlohmann::json* message = &content["message"];
  if (message->is_object() && message->contains("message")) message = &(*message)["message"];
  return message->is_string() ? printable_line(message->get<std::string>()) : "";
}

void pass_error_on(const RankEnd& first) {
  const std::string path = EnvironmentReader().text(kVariable).value_or("");
  if (path.empty()) return;
  const std::string what = error_of(first).empty() ? describe_failure(first) : error_of(first);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const nlohmann::json content{
      {"message",
       {{"message", what},
        {"errorCode", first.status.shell_code()},
        {"extraInfo",
         {{"py_callstack", describe_failure(first)},
          {"timestamp", std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count())}}}}}};
  const std::string text = content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  try {
    replace_error(path, text);
  } catch (const Error& error) {
    log_warning(fmt::format("{} names a file that cannot be written: {}", kVariable, error.what()));
  }
}

}  // namespace lockstep::internal
