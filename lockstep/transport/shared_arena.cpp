#include "lockstep/transport/shared_arena.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr char kFailed = '!';

// Where the first member's memory file is to be found, as it stands in the store.
struct Invitation {
  int pid = 0;
  int fd = -1;
  std::size_t bytes = 0;
  std::uint64_t nonce = 0;

  std::string text() const { return fmt::format("{} {} {} {}", pid, fd, bytes, nonce); }
  static Invitation parse(const std::string& text) {
    Invitation invitation;
    if (std::sscanf(text.c_str(), "%d %d %zu %lu", &invitation.pid, &invitation.fd, &invitation.bytes,
                    &invitation.nonce) != 4) {
      throw Error(ErrorKind::corrupt_data, "the store holds a malformed shared-memory invitation: " + text);
    }
    return invitation;
  }
};

std::vector<ArenaPeer> watch(const SharedArenaSpec& spec) {
  std::vector<ArenaPeer> peers(spec.members.size());
  for (std::size_t i = 0; i < peers.size(); ++i) {
    peers[i].name = spec.members[i].name;
    peers[i].pid = spec.members[i].pid;
    if (static_cast<int>(i) == spec.rank) continue;
    peers[i].pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, spec.members[i].pid, 0)));
    if (!peers[i].pidfd && errno == ESRCH) {
      ErrorDetail detail;
      detail.rank = spec.rank;
      detail.peer = static_cast<int>(i);
      throw Error(ErrorKind::peer_lost, peers[i].name + " has died while the group was being set up", detail);
    }
  }
  return peers;
}

// The memory file is reached through the first member's descriptor table, which the kernel opens to processes of the
// same user only.
Mapping attach(const SharedArenaSpec& spec, const Invitation& invitation) {
  const std::string path = fmt::format("/proc/{}/fd/{}", invitation.pid, invitation.fd);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) {
    throw system_error(
        fmt::format("cannot open the shared memory of {} at {} (ranks of one machine must run as the same user)",
                    spec.members[0].name, path),
        errno);
  }
  Mapping mapping = Mapping::attach(std::move(fd), invitation.bytes);
  const auto* header = reinterpret_cast<const arena::ArenaHeader*>(mapping.data());
  if (header->magic != arena::kMagic || header->version != arena::kVersion || header->nonce != invitation.nonce ||
      header->ranks != spec.members.size() || header->generation != spec.options.generation) {
    throw Error(ErrorKind::corrupt_data,
                "the shared memory of " + spec.members[0].name + " belongs to another group or version");
  }
  return mapping;
}

Mapping create(const SharedArenaSpec& spec, Store& store, const std::string& key, Deadline deadline) {
  const int ranks = static_cast<int>(spec.members.size());
  const std::size_t segment = spec.options.segment_bytes != 0
                                  ? (spec.options.segment_bytes + kHugePage - 1) / kHugePage * kHugePage
                                  : default_segment_bytes();
  try {
    Mapping mapping = Mapping::create(arena_bytes(ranks, segment));
    Invitation invitation{static_cast<int>(::getpid()), mapping.fd(), mapping.size(), 0};
    if (::getrandom(&invitation.nonce, sizeof invitation.nonce, 0) < 0) throw system_error("getrandom failed", errno);
    format_arena(mapping, ranks, segment, spec.options.generation, invitation.nonce);
    store.set(key, invitation.text(), deadline);
    return mapping;
  } catch (const Error& error) {
    store.set(key, kFailed + std::string(error.what()), deadline);
    throw;
  }
}

}  // namespace

std::unique_ptr<Arena> make_shared_arena(const SharedArenaSpec& spec, Store& store, Deadline deadline) {
  const std::string key = "arena/" + spec.name;
  std::vector<ArenaPeer> peers = watch(spec);
  std::shared_ptr<Mapping> mapping;
  if (spec.rank == 0) {
    mapping = std::make_shared<Mapping>(create(spec, store, key, deadline));
  } else {
    const std::string text = store.get(key, deadline);
    if (!text.empty() && text.front() == kFailed) {
      throw Error(ErrorKind::internal, spec.members[0].name + " could not make shared memory: " + text.substr(1));
    }
    mapping = std::make_shared<Mapping>(attach(spec, Invitation::parse(text)));
  }
  auto made = std::make_unique<Arena>(std::move(mapping), spec.rank, std::move(peers), "shared memory");
  made->ring();
  const auto missing = [&](int peer) {
    return made->control(peer).state.load(std::memory_order_acquire) == arena::RankState::absent;
  };
  const auto ready = [&] {
    for (int peer = 0; peer < made->size(); ++peer) {
      if (missing(peer)) return false;
    }
    return true;
  };
  const auto explain = [&](const Stall& stall) {
    ErrorDetail detail;
    detail.rank = spec.rank;
    detail.peer = stall.peer;
    std::string who;
    for (const int peer : stall.missing) who += (who.empty() ? "" : ", ") + made->peer_name(peer);
    if (stall.cause == Stall::Cause::deadline) {
      return Error(ErrorKind::timeout, fmt::format("shared memory of group {}: not mapped by {}", spec.name, who),
                   detail);
    }
    return Error(ErrorKind::peer_lost, made->peer_name(stall.peer) + " has died while the group was being set up",
                 detail);
  };
  made->await(ready, missing, explain, deadline);
  return made;
}

}  // namespace lockstep
