#include "lockstep/comm/net/token.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/base/format.h"
#include "tests/support/expect_error.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace token_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

std::string write_file(const std::string& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
  return path;
}

// Sets an environment variable for one scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { old_.empty() ? ::unsetenv(name_) : ::setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

}  // namespace

TEST_CASE("tokens differ") { CHECK(Token::generate().bytes() != Token::generate().bytes()); }

TEST_CASE("a token file is 64 hexadecimal digits") {
  TemporaryDirectory directory;
  const std::string digits(64, 'a');
  CHECK(Token::from_file(write_file(directory / "a", digits)).bytes()[31] == 0xaa);
  CHECK(Token::from_file(write_file(directory / "b", digits + "\n")).bytes()[0] == 0xaa);
  for (const std::string& bad : {digits.substr(1), digits + "a", std::string(64, 'g'), std::string(), digits + "\n\n",
                                 "0x" + digits.substr(2)}) {
    CAPTURE(bad);
    const std::string path = write_file(directory / "bad", bad);
    CHECK_ERROR(error_of([&] { Token::from_file(path); }), ErrorKind::invalid_argument, path, "64 hexadecimal digits");
  }
}

// fault: S9
TEST_CASE("a token file that others may read is refused with the command that mends it") {
  TemporaryDirectory directory;
  for (const mode_t mode : {0640, 0604, 0620, 0644}) {
    const std::string path = write_file(directory / "token", std::string(64, 'a'), mode);
    CHECK_ERROR(error_of([&] { Token::from_file(path); }), ErrorKind::unauthorized, path, "chmod 600");
  }
}

// fault: S9
TEST_CASE("a token file of another user is refused" * needs("root")) {
  TemporaryDirectory directory;
  const std::string path = write_file(directory / "token", std::string(64, 'a'));
  if (::geteuid() != 0) return skip("only root can give a file away");
  REQUIRE(::chown(path.c_str(), 12345, -1) == 0);
  CHECK_ERROR(error_of([&] { Token::from_file(path); }), ErrorKind::unauthorized, path, "user 12345");
}

TEST_CASE("a missing token file says what to copy from where") {
  CHECK_ERROR(error_of([] { Token::from_file("/nonexistent/token"); }), ErrorKind::invalid_argument,
              "/nonexistent/token", "copy ~/.lockstep/token", "rank 0", "LOCKSTEP_TOKEN_FILE");
}

TEST_CASE("a token survives the way through a sealed memory file") {
  const Token token = Token::generate();
  const UniqueFd fd = token.to_fd();
  CHECK(Token::from_fd(fd.get()).bytes() == token.bytes());
  CHECK(Token::from_fd(fd.get()).bytes() == token.bytes());
  CHECK(::pwrite(fd.get(), "x", 1, 0) == -1);
  CHECK(::ftruncate(fd.get(), 0) == -1);
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_ERROR(error_of([] { Token::from_fd(-1); }), ErrorKind::invalid_argument, "descriptor -1");
}

// fault: S1
TEST_CASE("once it is read, no program that this process starts inherits the token") {
  const UniqueFd fd = Token::generate().to_fd();
  REQUIRE(::fcntl(fd.get(), F_SETFD, 0) == 0);  // as a launcher hands it to a rank
  Token::from_fd(fd.get());
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

// fault: S1
TEST_CASE("a descriptor that got the token's number is not taken for it") {
  const std::string guessable(Token::kBytes, '7');
  const auto refused = [](int fd) {
    CHECK_ERROR(error_of([fd] { Token::from_fd(fd); }), ErrorKind::invalid_argument, "does not hold a job token",
                "LOCKSTEP_TOKEN_FD");
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0);
  };
  const UniqueFd writable(::memfd_create("other", MFD_ALLOW_SEALING));
  REQUIRE(::write(writable.get(), guessable.data(), guessable.size()) == static_cast<ssize_t>(guessable.size()));
  refused(writable.get());
  REQUIRE(::write(writable.get(), "more", 4) == 4);
  REQUIRE(::fcntl(writable.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
  refused(writable.get());  // sealed, but longer
  TemporaryDirectory directory;
  const UniqueFd file(::open(write_file(directory / "file", guessable).c_str(), O_RDONLY));
  refused(file.get());
}

TEST_CASE("a token has a fixed number of bytes") {
  const Token token = Token::generate();
  const auto* data = reinterpret_cast<const char*>(token.bytes().data());
  CHECK(Token::from_bytes({data, Token::kBytes}).bytes() == token.bytes());
  CHECK_ERROR(error_of([&] { Token::from_bytes({data, Token::kBytes - 1}); }), ErrorKind::corrupt_data, "32 bytes");
}

TEST_CASE("processes that need the home token at once all get the same one") {
  TemporaryDirectory home;
  const ScopedVariable variable("HOME", home.path());
  std::vector<Token> tokens(8);
  std::vector<std::thread> threads;
  for (Token& token : tokens) threads.emplace_back([&token] { token = Token::from_home(); });
  for (std::thread& thread : threads) thread.join();
  for (const Token& token : tokens) CHECK(token.bytes() == tokens[0].bytes());
  struct stat status {};
  REQUIRE(::stat((home / ".lockstep/token").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  REQUIRE(::stat((home / ".lockstep").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(home / ".lockstep")) ++files;
  CHECK(files == 1);
}

// fault: S9
TEST_CASE("without a home a job on one host keeps its token in a folder of the user's own, or not at all") {
  TemporaryDirectory place;
  const ScopedVariable home("HOME", "/nonexistent");
  const ScopedVariable runtime("XDG_RUNTIME_DIR", place.path());
  const Token token = Token::from_this_host();
  CHECK(Token::from_this_host().bytes() == token.bytes());
  const std::string folder = place / fmt::format("lockstep-{}", ::geteuid());
  struct stat status {};
  REQUIRE(::stat(folder.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  REQUIRE(::stat((folder + "/token").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK_ERROR(error_of([] { Token::from_home(); }), ErrorKind::invalid_argument, "/nonexistent", "LOCKSTEP_TOKEN_FILE");
  REQUIRE(::chmod(folder.c_str(), 0755) == 0);
  CHECK_ERROR(error_of([] { Token::from_this_host(); }), ErrorKind::unauthorized, folder, "LOCKSTEP_TOKEN_FILE");
}

TEST_CASE("with a home, a job on one host has the same token as any other") {
  TemporaryDirectory place;
  const ScopedVariable home("HOME", place.path());
  CHECK(Token::from_this_host().bytes() == Token::from_home().bytes());
}

TEST_CASE("a process takes its token from the descriptor, else from the file, else from home") {
  TemporaryDirectory home;
  const ScopedVariable variable("HOME", home.path());
  CHECK(Token::for_this_process().bytes() == Token::from_home().bytes());
  const std::string path = write_file(home / "other", std::string(64, 'b'));
  const ScopedVariable file("LOCKSTEP_TOKEN_FILE", path);
  CHECK(Token::for_this_process().bytes()[0] == 0xbb);
  const UniqueFd fd = Token::generate().to_fd();
  {
    const ScopedVariable descriptor("LOCKSTEP_TOKEN_FD", std::to_string(fd.get()));
    CHECK(Token::for_this_process().bytes() == Token::from_fd(fd.get()).bytes());
  }
  const ScopedVariable empty("LOCKSTEP_TOKEN_FD", "");
  CHECK(Token::for_this_process().bytes()[0] == 0xbb);
  const ScopedVariable bad("LOCKSTEP_TOKEN_FD", "7x");
  CHECK_ERROR(error_of([] { Token::for_this_process(); }), ErrorKind::invalid_argument, "LOCKSTEP_TOKEN_FD", "'7x'");
}

}  // namespace token_test
