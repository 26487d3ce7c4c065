#include "tools/run_values.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <csignal>
#include <optional>
#include <system_error>

#include "lockstep/base/environment.h"
#include "lockstep/base/format.h"
#include "lockstep/job/launch/cores.h"
#include "lockstep/job/launch/gpus.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/placement.h"
#include "lockstep/job/launch/rank_limits.h"

namespace lockstep::tools {

using namespace internal;

namespace {

constexpr const char* kStreamsWanted = "a number from 0 to 3, nor LOCAL_RANK:NUMBER, as in 0:1,1:3";
constexpr int kMostNodes = 65536;

std::optional<int> number(const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) return std::nullopt;
  return value;
}

std::vector<std::string> words(const std::string& text) {
  return text.empty() ? std::vector<std::string>() : CLI::detail::split(text, ',');
}

[[noreturn]] void refuse(const std::string& option, const std::string& text, const std::string& wanted) {
  throw CLI::ValidationError(option, "'" + text + "' is not " + wanted);
}

}  // namespace

int parse_ranks(const std::string& text) {
  // Set and empty means none.
  const char* const visible = process_environment("CUDA_VISIBLE_DEVICES");
  const int gpus = text == "auto" || text == "gpu" ? visible_gpus(present_gpus(), visible) : 0;
  if (gpus > 0) return gpus;
  if (text == "gpu") {
    throw CLI::ValidationError("--nproc-per-node",
                               visible != nullptr && present_gpus() > 0
                                   ? fmt::format("CUDA_VISIBLE_DEVICES is '{}', so no GPU is seen", visible)
                                   : "there is no GPU here; give a number, or 'cpu'");
  }
  if (text == "auto") return physical_cores();
  if (text == "cpu") return available_cores();
  if (text == "xpu") throw CLI::ValidationError("--nproc-per-node", "Intel GPUs cannot be counted here; give a number");
  if (const auto ranks = number(text, 1, kMostRanks)) return *ranks;
  refuse("--nproc-per-node", text, "a number from 1 to 1024, 'auto', 'cpu' or 'gpu'");
}

std::pair<int, int> parse_nodes(const std::string& text) {
  const std::size_t colon = text.find(':');
  const auto least = number(text.substr(0, colon), 1, kMostNodes);
  const auto most = colon == std::string::npos ? least : number(text.substr(colon + 1), 1, kMostNodes);
  if (!least || !most || *most < *least)
    refuse("--nnodes", text, "a number of hosts from 1 to 65536, or MIN:MAX with MIN <= MAX, as in 2:4");
  return {*least, *most};
}

std::pair<std::string, std::string> parse_variable(const std::string& option, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) refuse(option, text, "KEY=VALUE");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::vector<std::pair<std::string, std::string>> parse_config(const std::string& option, const std::string& text) {
  std::vector<std::pair<std::string, std::string>> config;
  for (const std::string& word : words(text)) config.push_back(parse_variable(option, word));
  return config;
}

std::vector<int> parse_signals(const std::string& option, const std::string& text) {
  std::vector<int> signals;
  for (const std::string& name : words(text)) {
    int found = 0;
    for (int signal = 1; signal < SIGRTMIN && found == 0; ++signal) {
      if (signal_name(signal) == name) found = signal;
    }
    if (found == 0 || found == SIGKILL || found == SIGSTOP || found == SIGCHLD || found == SIGTSTP) {
      refuse(option, name, "a signal that can ask a job to stop; give names, as in SIGTERM,SIGUSR1");
    }
    signals.push_back(found);
  }
  return signals;
}

std::map<int, int> parse_streams(const std::string& option, const std::string& text, int ranks) {
  std::map<int, int> streams;
  if (const auto all = number(text, 0, 3)) return {{-1, *all}};
  for (const std::string& word : words(text)) {
    const std::size_t colon = word.find(':');
    if (colon == std::string::npos) refuse(option, word, kStreamsWanted);
    const auto rank = number(word.substr(0, colon), 0, ranks - 1);
    const auto value = number(word.substr(colon + 1), 0, 3);
    if (!rank || !value) {
      refuse(option, word, fmt::format("{}; there are local ranks 0 to {}", kStreamsWanted, ranks - 1));
    }
    streams[*rank] = *value;
  }
  return streams;
}

void check_streams(const std::string& option, const std::map<int, int>& streams, int ranks) {
  for (const auto& [rank, value] : streams) {
    if (rank >= ranks) parse_streams(option, fmt::format("{}:{}", rank, value), ranks);
  }
}

std::vector<int> parse_local_ranks(const std::string& option, const std::string& text, int ranks) {
  std::vector<int> list;
  for (const std::string& word : words(text)) {
    const auto rank = number(word, 0, ranks - 1);
    if (!rank) refuse(option, word, "a local rank; there are 0 to " + std::to_string(ranks - 1));
    list.push_back(*rank);
  }
  return list;
}

void check_local_ranks(const std::string& option, const std::vector<int>& list, int ranks) {
  for (const int rank : list) {
    if (rank >= ranks) parse_local_ranks(option, std::to_string(rank), ranks);
  }
}

std::int64_t parse_memory(const std::string& text) {
  constexpr std::int64_t kLeast = std::int64_t{1} << 20;  // no program starts with less
  if (text.empty()) return 0;
  const auto bytes = parse_size(text);
  if (!bytes || *bytes < kLeast) refuse("--memory-per-rank", text, "a size of 1M or more, as in 8GiB, 500M, 1.5G");
  return *bytes;
}

double parse_cpus(const std::string& text) {
  constexpr double kLeast = 0.01;  // the kernel's
  constexpr double kMost = 100'000;
  if (text.empty()) return 0;
  double cpus = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, cpus, std::chars_format::fixed);
  if (error != std::errc() || end != last || !(cpus >= kLeast && cpus <= kMost)) {
    refuse("--cpus-per-rank", text, "a number of CPUs from 0.01, as in 2 or 0.5");
  }
  return cpus;
}

std::vector<std::string> parse_filters(const std::string& text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += text[i++];
    } else {
      filters.emplace_back();
    }
  }
  std::erase(filters, "");
  return filters;
}

}  // namespace lockstep::tools
