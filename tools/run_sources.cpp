#include "tools/run_sources.h"

#include <sys/stat.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "tools/option_hint.h"

namespace lockstep::tools {
namespace {

// What torchrun reads as PET_<NAME>.
constexpr const char* kVariables[] = {"PET_DUPLICATE_STDERR_FILTERS",
                                      "PET_DUPLICATE_STDOUT_FILTERS",
                                      "PET_EVENT_LOG_HANDLER",
                                      "PET_LOCAL_ADDR",
                                      "PET_LOCAL_RANKS_FILTER",
                                      "PET_LOG_DIR",
                                      "PET_MASTER_ADDR",
                                      "PET_MASTER_PORT",
                                      "PET_MAX_RESTARTS",
                                      "PET_MODULE",
                                      "PET_MONITOR_INTERVAL",
                                      "PET_NNODES",
                                      "PET_NODE_RANK",
                                      "PET_NO_PYTHON",
                                      "PET_NPROC_PER_NODE",
                                      "PET_RDZV_BACKEND",
                                      "PET_RDZV_CONF",
                                      "PET_RDZV_ENDPOINT",
                                      "PET_RDZV_ID",
                                      "PET_REDIRECTS",
                                      "PET_ROLE",
                                      "PET_RUN_PATH",
                                      "PET_SHUTDOWN_TIMEOUT",
                                      "PET_SIGNALS_TO_HANDLE",
                                      "PET_STANDALONE",
                                      "PET_START_METHOD",
                                      "PET_TEE",
                                      "PET_VIRTUAL_LOCAL_RANK"};

std::string option_of(std::string name) {
  std::ranges::replace(name, '_', '-');
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return "--" + name;
}

bool is_known(const OptionNames& names, const std::string& option) {
  return std::ranges::find(names.options, option) != names.options.end();
}

[[noreturn]] void fail(const std::string& place, const std::string& what) {
  throw CLI::FileError(place + ": " + what, CLI::ExitCodes::FileError);
}

std::string text_of(const toml::node& node, const std::string& place, const std::string& key) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto integer = node.value_exact<std::int64_t>()) return std::to_string(*integer);
  if (const auto real = node.value_exact<double>()) return std::to_string(*real);
  fail(place, key + " must be a string or a number");
}

// A list is the option several times, or one text with commas.
void add_value(const OptionNames& names, const std::string& option, const toml::node& node, Setting& setting) {
  const std::string key = option.substr(2);
  if (names.flags.contains(option)) {
    const auto wanted = node.value_exact<bool>();
    if (!wanted) fail(setting.place, key + " must be true or false");
    if (*wanted) setting.arguments.push_back(option);
  } else if (const toml::array* list = node.as_array()) {
    std::string joined;
    for (const toml::node& each : *list) {
      const std::string text = text_of(each, setting.place, key);
      if (names.lists.contains(option)) setting.arguments.push_back(option + "=" + text);
      joined += (joined.empty() ? "" : ",") + text;
    }
    if (!names.lists.contains(option)) setting.arguments.push_back(option + "=" + joined);
  } else {
    setting.arguments.push_back(option + "=" + text_of(node, setting.place, key));
  }
}

}  // namespace

std::vector<Setting> settings_of_environment(const OptionNames& names, const internal::EnvironmentReader& reader) {
  constexpr std::size_t kPrefix = 4;  // "PET_"
  std::vector<Setting> settings;
  if (const auto seconds = reader.text("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
    settings.push_back({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", {"--shutdown-timeout=" + *seconds}});
  }
  for (const char* variable : kVariables) {
    const auto value = reader.text(variable);
    if (!value) continue;
    const std::string option = option_of(std::string(variable).substr(kPrefix));
    Setting setting{variable, {}};
    if (!names.flags.contains(option)) {
      setting.arguments.push_back(option + "=" + *value);
    } else if (*value == "1") {  // as torchrun reads it
      setting.arguments.push_back(option);
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

std::vector<Setting> settings_of_file(const OptionNames& names, const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) fail(path, "there is no such file");
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    fail(path + ":" + std::to_string(error.source().begin.line), std::string(error.description()));
  }
  std::vector<Setting> settings;
  const auto add = [&](const toml::table& entries) {
    for (const auto& [key, node] : entries) {
      const std::string option = option_of(std::string(key.str()));
      Setting setting{path + ":" + std::to_string(key.source().begin.line), {}};
      if (!is_known(names, option))
        fail(setting.place, "there is no option " + option + option_hint(option, names.options));
      add_value(names, option, node, setting);
      settings.push_back(std::move(setting));
    }
  };
  if (const toml::table* run = table["run"].as_table()) {
    const toml::table inner = *run;
    table.erase("run");
    add(table);
    add(inner);
  } else {
    add(table);
  }
  return settings;
}

}  // namespace lockstep::tools
