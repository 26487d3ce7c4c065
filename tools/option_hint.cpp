#include "tools/option_hint.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/nearest_name.h"

namespace lockstep::tools {
namespace {

constexpr std::size_t kMostMistyped = 3;      // letters
constexpr std::size_t kLettersOfMistake = 3;  // as many letters of a name for each that may be mistyped
constexpr std::size_t kLeastBeginning = 3;    // letters that are taken for the beginning of a name

// What mpirun, srun and other launchers call it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kElsewhere{{
    {"-H", "--hosts"},
    {"-N", "--nnodes"},
    {"-c", "--nproc-per-node"},
    {"-x", "--env"},
    {"--hostfile", "--hosts"},
    {"--machine-rank", "--node-rank"},
    {"--np", "--nproc-per-node"},
    {"--nprocs", "--nproc-per-node"},
    {"--ntasks", "--nproc-per-node"},
    {"--ntasks-per-node", "--nproc-per-node"},
    {"--num-machines", "--nnodes"},
    {"--num-nodes", "--nnodes"},
    {"--num-processes", "--nproc-per-node"},
    {"--ranks", "--nproc-per-node"},
    {"--world-size", "--nproc-per-node"},
}};

// "--num_processes=2" -> "--num-processes", "-n2" -> "-n"
std::string name_of(std::string_view word) {
  std::string name(word.substr(0, word.find('=')));
  std::ranges::replace(name, '_', '-');
  if (!name.starts_with("--")) {
    while (name.size() > 2 && std::isdigit(static_cast<unsigned char>(name.back())) != 0) name.pop_back();
  }
  return name;
}

std::vector<std::string> meant_by(std::string_view word, const std::vector<std::string>& options) {
  const std::string name = name_of(word);
  for (const auto& [other, own] : kElsewhere) {
    if (name == other) return {std::string(own)};
  }
  const std::size_t letters = name.size() - std::min(name.size(), name.find_first_not_of('-'));
  std::vector<std::string> meant;
  if (letters >= kLeastBeginning) {
    const std::string beginning = "--" + name.substr(name.size() - letters);
    std::ranges::copy_if(options, std::back_inserter(meant), [&](const std::string& option) {
      return option.starts_with(beginning) && option.find('_') == std::string::npos;
    });
  }
  if (!meant.empty()) return meant;
  const std::size_t most = std::min(kMostMistyped, letters / kLettersOfMistake);
  if (const auto nearest = internal::nearest_name(name, options, most)) meant.push_back(*nearest);
  return meant;
}

}  // namespace

std::string option_hint(std::string_view word, const std::vector<std::string>& options) {
  const std::vector<std::string> meant = meant_by(word, options);
  return meant.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(meant, " or "));
}

}  // namespace lockstep::tools
