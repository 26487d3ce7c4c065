// What the agents of a job say to each other: an agent is one `lockstep run` on each host. message -> bytes -> frame ->
// link -> bytes -> message. Pure. Every length is limited, and every number is checked where it enters: a message that
// is damaged, or of another program, is Error{corrupt_data}.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/job/elastic/handover.h"
#include "lockstep/job/elastic/outside_message.h"
#include "lockstep/job/elastic/rank_message.h"
#include "lockstep/job/launch/line_splitter.h"
#include "lockstep/job/launch/rank_output.h"

namespace lockstep::internal {

inline constexpr int kMostHosts = 1 << 16;
inline constexpr int kMostRanksOfHost = 1024;
inline constexpr std::size_t kMostAgentMessageBytes = std::size_t{2} << 20;
inline constexpr std::size_t kMostRdzvIdBytes = 256;
inline constexpr std::size_t kMostOptionsTold = 16;
inline constexpr std::size_t kMostArgumentsTold = 64;
inline constexpr std::size_t kMostArgumentBytesTold = 256;
// In one message: the longest line of a rank, with its prefix, so that those of several hosts are not mixed within one.
inline constexpr std::size_t kMostOutputBytes = LineSplitter::kMaxLineBytes + (std::size_t{64} << 10);
inline constexpr std::size_t kMostStatusBytes = std::size_t{768} << 10;

// The first message of an agent that has connected.
struct Hello {
  std::string version = {};  // of Lockstep
  std::string rdzv_id = {};
  std::string host = {};  // its name
  int pid = 0;
  int ranks = 1;  // that it starts
  int least = 1;  // MIN:MAX hosts
  int most = 1;
  int node_rank = -1;                     // asked for; -1: any
  std::vector<std::string> options = {};  // those that all hosts give alike
  std::string program = {};               // its name, without the folder
  int master_port = 0;                    // free on its host
  // The program's arguments: the first ones, of long ones the beginning, and what tells whether all are equal.
  std::vector<std::string> arguments = {};
  std::string arguments_digest = {};
  Handover handover = {};  // of the job to which it belongs
};
// The answer: it belongs to the job, and this is what the job is called.
struct Welcome {
  int host_number = 0;
  std::string job_id = {};
};
// Or a refusal.
struct Refused {
  std::string why = {};
  bool may_pass = false;  // trying again may help
};
// Or its job (another rdzv id) is gathered at this port of the same address; 0: no agent gathers it yet.
struct Elsewhere {
  int port = 0;
};
// An agent on the same machine gathers another job: for the agents that ask here.
struct Gathers {
  std::string rdzv_id = {};
  int port = 0;
};
// A line of the job's state, for the agent's own standard error.
struct Notice {
  std::string text = {};
};
struct StartRanks {
  int generation = 0;
  int restarts = 0;
  int node_rank = 0;
  int nodes = 1;
  int first_rank = 0;
  int world_size = 1;
  std::string store = {};  // "host:port"
  std::string master_addr = {};
  int master_port = 0;
  int tell_hang_after_ms = 60'000;
  std::string restart_reason = {};  // as of restart_reason()
  bool wants_counts = false;        // somebody watches the job: RankCounts each second
};
struct StopRanks {  // a request: the signal, and the stop grace
  int signal = 0;
};
struct EndRanks {};  // as after a failure
struct KillRanks {};
struct AskToStop {  // to the first host
  int signal = 0;
};
struct Output {
  RankStream stream = RankStream::standard_output;
  std::string lines = {};
};
struct OutputTaken {
  std::uint32_t bytes = 0;
};
struct HostAlive {};      // a heartbeat
struct KeepOut {          // from the first host: in no attempt until this host reaches that address
  std::string host = {};  // its name
  std::string address = {};
};
struct Reached {};  // to the first host: it does
// The first host has left: the others meet anew at the endpoint.
struct MeetAnew {
  Handover handover = {};
};
// The job is over: the agent ends with this exit code.
struct Farewell {
  int exit_code = 0;
  std::string text = {};  // empty: nothing to say
};

using AgentMessage = std::variant<Hello, Welcome, Refused, Elsewhere, Gathers, Notice, StartRanks, StopRanks, EndRanks,
                                  KillRanks, AskToStop, RankEnded, RankStack, RankStands, HostStands, TellStacks,
                                  HostDone, Output, OutputTaken, HostAlive, KeepOut, Reached, MeetAnew, Farewell,
                                  AskStatus, TellStatus, HostStatus, StatusDone, StopJob, RankCounts>;

// Texts that are longer than their limit are cut.
Bytes encode(const AgentMessage& message);
AgentMessage decode_agent_message(ByteView bytes);

}  // namespace lockstep::internal
