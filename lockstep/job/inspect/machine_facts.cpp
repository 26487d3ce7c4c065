#include "lockstep/job/inspect/machine_facts.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/job/launch/program_path.h"

namespace lockstep::internal {
namespace {

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return std::nullopt;
  return text;
}

std::string find_in_path(const std::string& name) {
  try {
    return find_program(name, EnvironmentReader().text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

MachineFacts this_machine() {
  MachineFacts facts;
  facts.file = read_file;
  facts.limit = [](int resource) {
    rlimit value{};
    return ::getrlimit(static_cast<__rlimit_resource>(resource), &value) == 0 ? std::optional(value) : std::nullopt;
  };
  facts.file_system = [](const std::string& path) {
    struct statvfs value {};
    return ::statvfs(path.c_str(), &value) == 0 ? std::optional(value) : std::nullopt;
  };
  facts.program = find_in_path;
  return facts;
}

std::optional<double> number_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t digits = line.find_first_of("0123456789", name.size());
    if (digits != std::string::npos) return std::strtod(line.c_str() + digits, nullptr);
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
