// Options of `lockstep run` that are not on the command line: variables PET_<NAME>, as torchrun has them, and a TOML
// file. Both become arguments that go before those of the command line, which therefore win.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep::tools {

// One setting: where it stands ("PET_NNODES", "lockstep.toml:3"), and the arguments that say it.
struct Setting {
  std::string place;
  std::vector<std::string> arguments;
};

// The names of options, with "--" and with '-' between words; those of `flags` take no value.
struct OptionNames {
  std::vector<std::string> options;
  std::set<std::string> flags;
  std::set<std::string> lists;  // may be given several times
};

// torchrun's TORCH_ELASTIC_SHUTDOWN_TIMEOUT is one, too.
std::vector<Setting> settings_of_environment(const OptionNames& names, const internal::EnvironmentReader& reader);
// Keys are names of options, with '-' or '_' between words, at the top of the file or in its table [run]. Throws
// CLI::FileError with the path, the line and what is wrong.
std::vector<Setting> settings_of_file(const OptionNames& names, const std::string& path);

}  // namespace lockstep::tools
