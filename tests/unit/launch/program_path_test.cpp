#include "lockstep/job/launch/program_path.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace program_path_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

class ProgramFolder {
 public:
  ProgramFolder() {
    char name[] = "/tmp/lockstep-path-XXXXXX";
    path_ = ::mkdtemp(name);
    write("plain", 0644);
    write("program", 0755);
  }
  ~ProgramFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  void write(const std::string& name, int mode) const {
    std::ofstream(path_ + "/" + name) << "#!/bin/sh\n";
    std::filesystem::permissions(path_ + "/" + name, static_cast<std::filesystem::perms>(mode));
  }
  std::string path_;
};

int shell_code_of_failure(const std::string& name, const std::string& search_path) {
  try {
    find_program(name, search_path);
  } catch (const ExecFailed& error) {
    CHECK(error.kind() == ErrorKind::invalid_argument);
    return error.shell_code();
  }
  return 0;
}

}  // namespace

TEST_CASE("a program is found as a shell would find it") {
  const ProgramFolder folder;
  const std::string path = folder.path() + "/program";
  CHECK(find_program(path, "") == path);
  CHECK(find_program("program", "/nowhere:" + folder.path()) == path);
  CHECK(shell_code_of_failure("program", "/nowhere") == 127);
  CHECK(shell_code_of_failure("", folder.path()) == 127);
  CHECK(shell_code_of_failure(folder.path() + "/missing", folder.path()) == 127);
  CHECK(shell_code_of_failure(folder.path(), "") == 126);
  CHECK(shell_code_of_failure("plain", folder.path()) == 126);
}

}  // namespace program_path_test
