#include "lockstep/comm/net/token.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::size_t kHexDigits = Token::kBytes * 2;
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

using TokenBytes = std::array<std::uint8_t, Token::kBytes>;

Error malformed(const std::string& path) {
  return Error(
      ErrorKind::invalid_argument,
      fmt::format("the token file {} does not hold {} hexadecimal digits; copy it again from the host of rank 0", path,
                  kHexDigits));
}

TokenBytes parse_hex(std::string_view text, const std::string& path) {
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (text.size() != kHexDigits) throw malformed(path);
  TokenBytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* digits = text.data() + 2 * i;
    const auto result = std::from_chars(digits, digits + 2, bytes[i], 16);
    if (result.ec != std::errc() || result.ptr != digits + 2) throw malformed(path);
  }
  return bytes;
}

// Empty if this user has none.
std::string home_directory() {
  if (const auto home = EnvironmentReader().text("HOME")) return *home;
  passwd entry{};
  passwd* found = nullptr;
  char buffer[4096];
  ::getpwuid_r(::geteuid(), &entry, buffer, sizeof buffer, &found);
  return found != nullptr && found->pw_dir != nullptr ? found->pw_dir : "";
}

void check_owner_and_mode(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw system_error("reading the status of the token file " + path + " failed", errno);
  if (!S_ISREG(status.st_mode)) throw malformed(path);
  if (status.st_uid != ::geteuid()) {
    throw Error(ErrorKind::unauthorized,
                fmt::format("the token file {} belongs to user {}, not to this user {}; make your own copy", path,
                            status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(ErrorKind::unauthorized,
                fmt::format("the token file {} has mode {:04o}, so others may read or change it; run: chmod 600 {}",
                            path, status.st_mode & 07777, path));
  }
}

// Makes the folder's token unless it has one. Why that is impossible, if it is.
std::optional<Error> ensure_token(const std::string& directory) {
  const std::string path = directory + "/token";
  if (::access(path.c_str(), F_OK) == 0) return std::nullopt;
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return Error(
        ErrorKind::invalid_argument,
        fmt::format("cannot make {} for the job token: {}; set LOCKSTEP_TOKEN_FILE to a file of mode 0600 elsewhere",
                    directory, std::strerror(errno)));
  }
  try {
    AtomicFile file(path);
    const std::string digits = fmt::format("{:02x}\n", fmt::join(Token::generate().bytes(), ""));
    file.write(std::as_bytes(std::span(digits)));
    file.publish_if_missing();  // another process may make one
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

std::optional<Error> ensure_home_token(std::string& directory) {
  const std::string home = home_directory();
  if (home.empty()) {
    return Error(
        ErrorKind::invalid_argument,
        "this user has no home directory to keep the job token in; set LOCKSTEP_TOKEN_FILE to a file of mode 0600");
  }
  directory = home + "/.lockstep";
  return ensure_token(directory);
}

// In /tmp anybody may have made it before.
void check_private(const std::string& directory) {
  struct stat status {};
  if (::lstat(directory.c_str(), &status) != 0)
    throw system_error("reading the status of " + directory + " failed", errno);
  const bool is_private = S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
  if (is_private) return;
  throw Error(ErrorKind::unauthorized,
              fmt::format("{} cannot keep the job token: it is not a private folder of this user; set "
                          "LOCKSTEP_TOKEN_FILE to a file of mode 0600 elsewhere",
                          directory));
}

}  // namespace

Token Token::generate() {
  Token token;
  std::size_t done = 0;
  while (done < kBytes) {
    const ssize_t count = ::getrandom(token.bytes_.data() + done, kBytes - done, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error("the kernel gave no random bytes for the job token", errno);
    done += static_cast<std::size_t>(count);
  }
  return token;
}

Token Token::from_file(const std::string& path) {
  // O_NONBLOCK: a FIFO put in the file's place must not hang the job.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("cannot read the token file {}: {}. All hosts of a job need the same one: copy ~/.lockstep/token "
                    "(or the file that LOCKSTEP_TOKEN_FILE names) from the host of rank 0 to this path, mode 0600",
                    path, std::strerror(errno)));
  }
  check_owner_and_mode(fd.get(), path);
  char text[kHexDigits + 2];
  const ssize_t count = ::pread(fd.get(), text, sizeof text, 0);
  if (count < 0) throw system_error("reading the token file " + path + " failed", errno);
  Token token;
  token.bytes_ = parse_hex({text, static_cast<std::size_t>(count)}, path);
  return token;
}

Token Token::from_home() {
  std::string directory;
  if (const auto error = ensure_home_token(directory)) throw Error(*error);
  return from_file(directory + "/token");
}

std::optional<Token> Token::from_home_if_any() {
  const std::string home = home_directory();
  const std::string path = home + "/.lockstep/token";
  if (home.empty() || ::access(path.c_str(), F_OK) != 0) return std::nullopt;
  return from_file(path);
}

Token Token::from_this_host() {
  std::string directory;
  if (!ensure_home_token(directory)) return from_file(directory + "/token");
  directory = fmt::format("{}/lockstep-{}", EnvironmentReader().text("XDG_RUNTIME_DIR").value_or("/tmp"), ::geteuid());
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    throw system_error("making " + directory + " for the job token failed", errno);
  }
  check_private(directory);
  if (const auto error = ensure_token(directory)) throw Error(*error);
  return from_file(directory + "/token");
}

Token Token::from_fd(int fd) {
  struct stat status {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  const bool is_ours = seals >= 0 && (seals & kSeals) == kSeals && ::fstat(fd, &status) == 0 &&
                       status.st_size == static_cast<off_t>(kBytes);
  char bytes[kBytes];
  if (!is_ours || ::pread(fd, bytes, kBytes, 0) != static_cast<ssize_t>(kBytes)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("descriptor {} does not hold a job token. It was closed or used again before this process "
                            "joined the job, or this process was started by a rank that had joined, which does not "
                            "pass the token on: start it without LOCKSTEP_TOKEN_FD in its environment",
                            fd));
  }
  // Holders of the token belong to the job. Helpers that a rank starts, perhaps as another user, do not.
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    throw system_error("making the job token private to this process failed", errno);
  return from_bytes({bytes, kBytes});
}

Token Token::from_bytes(ByteView bytes) {
  if (bytes.size() != kBytes) {
    throw Error(ErrorKind::corrupt_data, fmt::format("a job token has {} bytes, not {}", kBytes, bytes.size()));
  }
  Token token;
  std::memcpy(token.bytes_.data(), bytes.data(), kBytes);
  return token;
}

Token Token::for_this_process() {
  const EnvironmentReader reader;
  if (const auto fd = reader.number("LOCKSTEP_TOKEN_FD")) return from_fd(*fd);
  if (const auto path = reader.text("LOCKSTEP_TOKEN_FILE")) return from_file(*path);
  return from_home();
}

std::string Token::origin_for_this_process() {
  const EnvironmentReader reader;
  if (reader.has("LOCKSTEP_TOKEN_FD")) return "whose token is from the process that started it (LOCKSTEP_TOKEN_FD)";
  if (const auto path = reader.text("LOCKSTEP_TOKEN_FILE")) {
    return fmt::format("whose token is from {} (LOCKSTEP_TOKEN_FILE)", *path);
  }
  return fmt::format("whose token is from {}/.lockstep/token", home_directory());
}

UniqueFd Token::to_fd() const {
  UniqueFd fd(::memfd_create("lockstep-token", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw memory_file_error("making a memory file for the job token failed", errno);
  write_all(fd.get(), {reinterpret_cast<const char*>(bytes_.data()), kBytes},
            "writing the job token's memory file failed");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) throw system_error("sealing the job token failed", errno);
  return fd;
}

}  // namespace lockstep
