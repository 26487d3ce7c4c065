#include "bench/serve.h"

#include <ATen/ops/from_blob.h>

#include <cstdio>
#include <iostream>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace bench {
namespace {

using lockstep::ReduceOp;

// Travels between ranks as four integers.
struct Command {
  enum class Kind : std::int64_t { end, measure, unknown } kind = Kind::end;
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::int64_t third = 0;
};

Command read_command(const std::string& verb) {
  std::string line;
  if (!std::getline(std::cin, line)) return {};
  std::istringstream words(line);
  std::string found;
  Command command{Command::Kind::measure, 0, 0, 0};
  words >> found >> command.first;
  if (!words || found != verb || command.first < 1) return {Command::Kind::unknown, 0, 0, 0};
  words >> command.second >> command.third;
  return command;
}

// The next command, on all ranks.
Command next_command(const lockstep::ProcessGroup& group, const std::string& verb) {
  Command command;
  if (group.rank() == 0) command = read_command(verb);
  const at::Tensor shared = at::from_blob(&command, {4}, at::kLong);
  group.broadcast(shared, 0, {.name = "command"});
  return command;
}

void print_seconds(const std::vector<double>& seconds) {
  std::puts(fmt::format("{{\"seconds\": [{:.9f}]}}", fmt::join(seconds, ", ")).c_str());
  std::fflush(stdout);
}

}  // namespace

void serve(const lockstep::ProcessGroup& group, const std::string& verb, OfRanks of_ranks, const Measure& measure) {
  if (group.rank() == 0) {
    std::puts("{\"ready\": true}");
    std::fflush(stdout);
  }
  for (;;) {
    const Command command = next_command(group, verb);
    if (command.kind == Command::Kind::end) return;
    if (command.kind == Command::Kind::unknown) {
      throw lockstep::Error(lockstep::ErrorKind::invalid_argument,
                            fmt::format("standard input: expected \"{} <number> ...\"", verb));
    }
    std::vector<double> seconds = measure(command.first, command.second, command.third);
    const at::Tensor shared = at::from_blob(seconds.data(), {static_cast<std::int64_t>(seconds.size())}, at::kDouble);
    group.all_reduce(shared, of_ranks == OfRanks::slowest ? ReduceOp::max : ReduceOp::avg, {.name = "seconds"});
    if (group.rank() == 0) print_seconds(seconds);
  }
}

}  // namespace bench
