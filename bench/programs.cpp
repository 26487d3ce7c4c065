#include "bench/programs.h"

#include <cstdlib>
#include <filesystem>

#include "lockstep/job/launch/program_path.h"

namespace bench {

std::string built_program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name);
}

std::string script(const std::string& name) { return std::filesystem::path(BENCH_SOURCE_DIR) / name; }

std::string python() {
  if (const char* chosen = std::getenv("LOCKSTEP_BENCH_PYTHON")) return chosen;
  const auto own = std::filesystem::path(BENCH_SOURCE_DIR).parent_path() / ".venv/bin/python";
  return std::filesystem::exists(own) ? own.string() : "python3";
}

std::vector<std::string> with_own_backend(std::vector<std::string> command) {
  command.insert(command.begin(), {"env", std::string("PYTHONPATH=") + BENCH_PYTHON_SITE});
  return command;
}

std::string own_backend() {
  const auto folder = std::filesystem::path(BENCH_PYTHON_SITE) / "lockstep";
  std::error_code absent;
  for (const auto& file : std::filesystem::directory_iterator(folder, absent)) {
    if (file.path().extension() == ".so") return file.path();
  }
  return folder / "_lockstep.so";
}

std::string path_of(const std::string& program) {
  const char* path = std::getenv("PATH");
  return lockstep::internal::find_program(program, path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
}

bool exists(const std::string& program) {
  try {
    path_of(program);
    return true;
  } catch (const lockstep::internal::ExecFailed&) {
    return false;
  }
}

}  // namespace bench
