// What the options of `lockstep run` hold, read from their texts. Each throws CLI::ValidationError, which names the
// option, quotes the text and says what can be there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::tools {

inline constexpr int kMostRanks = 1024;  // of a host

// "4", "auto" (GPUs that CUDA_VISIBLE_DEVICES shows if there are any, else cores), "cpu", "gpu"
int parse_ranks(const std::string& text);
// "2" or "1:4"
std::pair<int, int> parse_nodes(const std::string& text);
// "KEY=VALUE"; "a=1,b=2"
std::pair<std::string, std::string> parse_variable(const std::string& option, const std::string& text);
std::vector<std::pair<std::string, std::string>> parse_config(const std::string& option, const std::string& text);
// "SIGTERM,SIGUSR1"
std::vector<int> parse_signals(const std::string& option, const std::string& text);
// "3" for all ranks, or "0:1,2:3": which streams of which local rank (1: output, 2: error, 3: both). Key -1: all.
std::map<int, int> parse_streams(const std::string& option, const std::string& text, int ranks = kMostRanks);
// "0,2"
std::vector<int> parse_local_ranks(const std::string& option, const std::string& text, int ranks = kMostRanks);
// Refuses local ranks that a host with that many ranks does not have.
void check_streams(const std::string& option, const std::map<int, int>& streams, int ranks);
void check_local_ranks(const std::string& option, const std::vector<int>& list, int ranks);
// "8GiB", "500M", see parse_size(); "0.5". Empty: none.
std::int64_t parse_memory(const std::string& text);
double parse_cpus(const std::string& text);
// "apple,orange"; a comma of the text itself is written ",,"
std::vector<std::string> parse_filters(const std::string& text);

}  // namespace lockstep::tools
