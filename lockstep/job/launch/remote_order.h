// RemoteOrder tells a host which part of a job to run for a launcher elsewhere: it arrives on standard
// input, so neither the token nor an argument passes a shell or can be seen in a list of processes. order -> bytes ->
// ssh -> bytes -> order. Pure. After the order, each byte is the number of a signal for the agent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/job/launch/local_job.h"

namespace lockstep::internal {

inline constexpr const char* kRemoteCommand = "remote-host";  // `lockstep remote-host` reads an order
inline constexpr std::size_t kMostOrderBytes = std::size_t{16} << 20;

struct RemoteOrder {
  std::string version;    // of Lockstep
  std::string host;       // as the user calls it
  std::string directory;  // in which the agent works
  Bytes token;
  std::string secret{};            // of the marks that tell of the agent; see agent_marks.h
  std::uint32_t end_limit_s = 60;  // the agent is killed this long after its connection was lost
  Variables environment;
  std::vector<std::string> arguments;  // of `lockstep`, without its own name
};

Bytes encode(const RemoteOrder& order);

// The order at the beginning of what has been read, and how many bytes it has; nothing if it is not there yet.
// Error{corrupt_data} if it never will be.
struct ReadOrder {
  RemoteOrder order;
  std::size_t bytes = 0;
};
std::optional<ReadOrder> decode_order(ByteView bytes);

// The text as one word of a POSIX shell.
std::string shell_word(std::string_view text);

}  // namespace lockstep::internal
