#include "lockstep/job/elastic/agent_message.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>
#include <utility>

#include "lockstep/comm/net/wire.h"
#include "lockstep/job/elastic/message_fields.h"
#include "lockstep/job/elastic/rank_status_fields.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostNameBytes = 256;
constexpr int kMostPort = 65535;
constexpr int kMostNumber = 1 << 30;
constexpr int kMostSignal = 64;

template <class Fields, class Message>
void handover_fields(Fields& fields, Message& handover) {
  fields.text(handover.job_id, kMostNameBytes);
  fields.number(handover.generation, -1, kMostNumber - 1, "generation");
  fields.number(handover.restarts, 0, kMostNumber, "number of restarts");
  fields.number(handover.hosts, 0, kMostHosts, "number of hosts");
}

template <class Fields, class Message>
void hello_fields(Fields& fields, Message& hello) {
  fields.text(hello.version, kMostNameBytes);
  fields.text(hello.rdzv_id, kMostRdzvIdBytes);
  fields.text(hello.host, kMostNameBytes);
  fields.number(hello.pid, 0, kMostNumber, "pid");
  fields.number(hello.ranks, 1, kMostRanksOfHost, "number of ranks");
  fields.number(hello.least, 1, kMostHosts, "least number of hosts");
  fields.number(hello.most, 1, kMostHosts, "greatest number of hosts");
  fields.number(hello.node_rank, -1, kMostHosts - 1, "node rank");
  fields.list(hello.options, kMostOptionsTold, [](auto& to, auto& each) { to.text(each, kMostArgumentBytesTold); });
  fields.text(hello.program, kMostNameBytes);
  fields.number(hello.master_port, 0, kMostPort, "port");
  fields.list(hello.arguments, kMostArgumentsTold, [](auto& to, auto& each) { to.text(each, kMostArgumentBytesTold); });
  fields.text(hello.arguments_digest, kMostNameBytes);
  handover_fields(fields, hello.handover);
}

template <class Fields, class Message>
void start_fields(Fields& fields, Message& start) {
  fields.number(start.generation, 0, kMostNumber, "generation");
  fields.number(start.restarts, 0, kMostNumber, "number of restarts");
  fields.number(start.nodes, 1, kMostHosts, "number of hosts");
  fields.number(start.node_rank, 0, start.nodes - 1, "node rank");
  fields.number(start.world_size, 1, kMostRanks, "number of ranks");
  fields.number(start.first_rank, 0, start.world_size - 1, "first rank");
  fields.text(start.store, kMostNameBytes);
  fields.text(start.master_addr, kMostNameBytes);
  fields.number(start.master_port, 0, kMostPort, "port");
  fields.number(start.tell_hang_after_ms, 1, kMostNumber, "time");
  fields.text(start.restart_reason, kMostTextBytes);
  fields.flag(start.wants_counts);
}

template <class Fields, class Message>
void end_fields(Fields& fields, Message& end) {
  fields.number(end.rank, 0, kMostRanks - 1, "rank");
  fields.number(end.pid, kNotStarted, kMostNumber, "pid");
  fields.number(end.status.code, 0, 255, "exit code");
  fields.number(end.status.signal, 0, kMostSignal, "signal");
  fields.flag(end.status.core_dumped);
  fields.amount(end.status.peak_bytes, "memory");
  fields.text(end.failure.text, kMostTextBytes);
  fields.choice(end.failure.fault, Fault::own, Fault::consequence, "fault");
  fields.number(end.failure.blamed, -1, kMostRanks - 1, "blamed rank");
  fields.optional(end.failure.out_of_memory, [](auto& to, auto& value) { to.flag(value); });
  fields.flag(end.told_to_stop);
  fields.choice(end.own_end, OwnEnd::no, OwnEnd::after_failure, "own end");
  fields.flag(end.killed);
  fields.flag(end.was_suspended);
  fields.text(end.error, kMostTextBytes);
  fields.text(end.last_operation, kMostTextBytes);
  fields.optional(end.failure.lateness_ns, [](auto& to, auto& value) { to.amount(value, "lateness"); });
  fields.lines(end.last_error_lines);
  fields.optional(end.failure.limits, [](auto& to, auto& use) {
    to.amount(use.limits.memory_bytes, "limit of memory");
    to.share(use.limits.cpus);
    to.flag(use.memory_reached);
    to.amount(use.peak_bytes, "memory");
    to.amount(use.periods, "number of periods");
    to.amount(use.throttled, "number of periods");
    to.amount(use.throttled_us, "time");
  });
}

// Of a record only what tells of a hang: the rest is in the text beside it.
template <class Fields, class Record>
void record_fields(Fields& fields, Record& record) {
  fields.count(record.number, "number of an operation");
  fields.count(record.sequence, "number of a collective");
  fields.amount(record.issued_ns, "time");
  fields.amount(record.started_ns, "time");
  fields.amount(record.finished_ns, "time");
  fields.choice(record.state, FlightState::issued, FlightState::failed, "state");
}

template <class Fields, class Sight>
void sight_fields(Fields& fields, Sight& sight) {
  const auto record = [](auto& to, auto& value) { record_fields(to, value); };
  fields.number(sight.place.rank, 0, kMostRanks - 1, "rank");
  fields.flag(sight.place.is_stopped);
  fields.list(sight.place.groups, kMostGroupsTold, [&](auto& to, auto& group) {
    to.text(group.group, kMostNameBytes);
    to.number(group.size, 0, kMostRanks, "size of a group");
    to.text(group.text, kMostNameBytes);
    to.optional(group.last, record);
  });
  fields.text(sight.place.message_text, kMostNameBytes);
  fields.optional(sight.place.message, record);
  fields.number(sight.pid, 0, kMostNumber, "pid");
  fields.flag(sight.has_recording);
  fields.letter(sight.state);
  fields.share(sight.cpu);
  fields.flag(sight.is_progress);
}

struct Listing {
  template <class Fields, class Message>
  static void list(Fields& fields, Message& message) {
    using Kind = std::remove_const_t<Message>;
    if constexpr (std::is_same_v<Kind, Hello>) {
      hello_fields(fields, message);
    } else if constexpr (std::is_same_v<Kind, Welcome>) {
      fields.number(message.host_number, 0, kMostNumber, "number of a host");
      fields.text(message.job_id, kMostNameBytes);
    } else if constexpr (std::is_same_v<Kind, Refused>) {
      fields.text(message.why, kMostTextBytes);
      fields.flag(message.may_pass);
    } else if constexpr (std::is_same_v<Kind, Elsewhere>) {
      fields.number(message.port, 0, kMostPort, "port");
    } else if constexpr (std::is_same_v<Kind, Gathers>) {
      fields.text(message.rdzv_id, kMostRdzvIdBytes);
      fields.number(message.port, 1, kMostPort, "port");
    } else if constexpr (std::is_same_v<Kind, Notice>) {
      fields.text(message.text, kMostTextBytes);
    } else if constexpr (std::is_same_v<Kind, StartRanks>) {
      start_fields(fields, message);
    } else if constexpr (std::is_same_v<Kind, StopRanks> || std::is_same_v<Kind, AskToStop>) {
      fields.number(message.signal, 1, kMostSignal, "signal");
    } else {
      list_report(fields, message);
    }
  }

  template <class Fields, class Message>
  static void list_report(Fields& fields, Message& message) {
    using Kind = std::remove_const_t<Message>;
    if constexpr (std::is_same_v<Kind, RankEnded>) {
      fields.number(message.generation, 0, kMostNumber, "generation");
      end_fields(fields, message.end);
    } else if constexpr (std::is_same_v<Kind, RankStack>) {
      fields.number(message.generation, 0, kMostNumber, "generation");
      fields.number(message.rank, 0, kMostRanks - 1, "rank");
      fields.lines(message.lines);
    } else if constexpr (std::is_same_v<Kind, RankStands>) {
      fields.number(message.generation, 0, kMostNumber, "generation");
      fields.amount(message.now_ns, "time");
      sight_fields(fields, message.sight);
    } else if constexpr (std::is_same_v<Kind, HostStands>) {
      fields.number(message.generation, 0, kMostNumber, "generation");
      fields.flag(message.is_still);
      fields.amount(message.now_ns, "time");
      fields.amount(message.last_event_ns, "time");
    } else if constexpr (std::is_same_v<Kind, RankCounts>) {
      fields.number(message.generation, 0, kMostNumber, "generation");
      rank_status_fields(fields, message.status, kMostRanks);
    } else if constexpr (std::is_same_v<Kind, TellStacks>) {
      fields.list(message.first, kMostRanksOfHost,
                  [](auto& to, auto& rank) { to.number(rank, 0, kMostRanks - 1, "rank"); });
    } else {
      list_state(fields, message);
    }
  }

  template <class Fields, class Message>
  static void list_state(Fields& fields, Message& message) {
    using Kind = std::remove_const_t<Message>;
    if constexpr (std::is_same_v<Kind, HostDone>) {
      fields.number(message.generation, 0, kMostNumber, "generation");
      fields.number(message.master_port, 0, kMostPort, "port");
    } else if constexpr (std::is_same_v<Kind, Output>) {
      fields.choice(message.stream, RankStream::standard_output, RankStream::standard_error, "stream");
      fields.text(message.lines, kMostOutputBytes);
    } else if constexpr (std::is_same_v<Kind, OutputTaken>) {
      fields.size(message.bytes, 1U << 30, "number of bytes");
    } else if constexpr (std::is_same_v<Kind, KeepOut>) {
      fields.text(message.host, kMostNameBytes);
      fields.text(message.address, kMostNameBytes);
    } else if constexpr (std::is_same_v<Kind, Farewell>) {
      fields.number(message.exit_code, 0, 255, "exit code");
      fields.text(message.text, kMostTextBytes);
    } else {
      list_question(fields, message);
    }
  }

  template <class Fields, class Message>
  static void list_question(Fields& fields, Message& message) {
    using Kind = std::remove_const_t<Message>;
    if constexpr (std::is_same_v<Kind, MeetAnew>) {
      handover_fields(fields, message.handover);
    } else if constexpr (std::is_same_v<Kind, AskStatus> || std::is_same_v<Kind, StopJob>) {
      fields.text(message.rdzv_id, kMostRdzvIdBytes);
    } else if constexpr (std::is_same_v<Kind, HostStatus>) {
      fields.text(message.host, kMostNameBytes);
      fields.text(message.ranks, kMostStatusBytes);
    } else if constexpr (std::is_same_v<Kind, StatusDone>) {
      fields.text(message.job_id, kMostNameBytes);
      fields.number(message.world_size, 0, kMostRanks, "number of ranks");
    } else {
      static_assert(std::is_same_v<Kind, EndRanks> || std::is_same_v<Kind, KillRanks> ||
                    std::is_same_v<Kind, TellStatus> || std::is_same_v<Kind, HostAlive> ||
                    std::is_same_v<Kind, Reached>);
    }
  }
};

constexpr int kKinds = static_cast<int>(std::variant_size_v<AgentMessage>);

template <std::size_t... Kinds>
AgentMessage empty_message(std::size_t kind, std::index_sequence<Kinds...>) {
  AgentMessage message;
  ((kind == Kinds ? static_cast<void>(message.emplace<Kinds>()) : void()), ...);
  return message;
}

constexpr std::int64_t kMicrosecond = 1000;  // in nanoseconds
constexpr std::int64_t kMostMicroseconds = std::int64_t{1} << 50;

}  // namespace

Bytes encode(const AgentMessage& message) {
  Bytes out;
  put_u8(out, static_cast<std::uint8_t>(message.index()));
  FieldWriter writer(out);
  std::visit([&](const auto& each) { Listing::list(writer, each); }, message);
  if (const auto* ended = std::get_if<RankEnded>(&message)) {
    put_u64(out, static_cast<std::uint64_t>(ended->end.after_start.count() / kMicrosecond));
  }
  return out;
}

AgentMessage decode_agent_message(ByteView bytes) {
  FieldReader reader(bytes);
  const std::size_t kind = checked_index(reader.kind(), std::size_t{kKinds}, "kind", kAgentMessage);
  AgentMessage message = empty_message(kind, std::make_index_sequence<std::size_t{kKinds}>());
  std::visit([&](auto& each) { Listing::list(reader, each); }, message);
  if (auto* ended = std::get_if<RankEnded>(&message)) {
    std::int64_t microseconds = 0;
    reader.amount(microseconds, "time");
    ended->end.after_start = std::chrono::microseconds(
        checked_between<std::int64_t>(microseconds, 0, kMostMicroseconds, "time", kAgentMessage));
  }
  reader.end();
  return message;
}

}  // namespace lockstep::internal
