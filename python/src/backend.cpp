#include "backend.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/group/connect.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/store/prefix_store.h"
#include "round.h"
#include "store.h"

namespace lockstep::python {

using namespace internal;

namespace {

bool has_token_of_its_own() { return EnvironmentReader().has_any_of({"LOCKSTEP_TOKEN_FD", "LOCKSTEP_TOKEN_FILE"}); }

// A launcher's token, or a fresh one that rank 0 shares: torch's store is then what keeps strangers out.
std::optional<Token> token_to_bring(int rank) {
  if (has_token_of_its_own()) return Token::for_this_process();
  if (rank == 0) return Token::generate();
  return std::nullopt;
}

Token token_of(const Round& round, const std::optional<Token>& brought, int rank) {
  if (rank == 0 || (brought && round.shared_token.empty())) return *brought;
  if (!brought && !round.shared_token.empty()) return Token::from_bytes(round.shared_token);
  throw Error(ErrorKind::unauthorized,
              std::string("LOCKSTEP_TOKEN_FILE or LOCKSTEP_TOKEN_FD is set on ") +
                  (brought ? "this rank and not on rank 0" : "rank 0 and not on this rank") + "; set it on all ranks",
              {.rank = rank, .peer = 0, .operation = "join"});
}

Backend::Milliseconds checked(Backend::Milliseconds timeout) {
  if (timeout > Backend::Milliseconds::zero()) return std::min(timeout, kLongestTimeout);
  C10_THROW_ERROR(ValueError, "a timeout of " + std::to_string(timeout.count()) +
                                  " ms: it must be positive (torch makes timeouts over 292,000 years negative, such as "
                                  "timedelta.max; for no limit, use timedelta(days=36500))");
}

// Torch says here who the ranks are and where they meet, whatever a launcher says.
const char* environment(const char* name) {
  constexpr std::array<std::string_view, 3> kOfTheHost{"LOCKSTEP_NODE", "LOCKSTEP_ADDRESS", "LOCKSTEP_IFNAME"};
  return std::ranges::find(kOfTheHost, name) == kOfTheHost.end() ? nullptr : process_environment(name);
}

// Torch's names of groups have any length.
std::string short_name(const std::string& name) { return name.size() <= 48 ? name : name.substr(name.size() - 48); }

}  // namespace

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout,
                 const std::string& group_name, std::vector<std::uint64_t> global_ranks)
    : c10d::Backend(rank, size), options_(c10::make_intrusive<Options>("lockstep", checked(timeout))) {
  options_->group_name = group_name;
  options_->global_ranks_in_group = std::move(global_ranks);
  with_torch_errors([&] {
    const Deadline deadline = Deadline::after(options_->timeout);
    const auto meeting_place = std::make_shared<PrefixStore>(std::make_shared<TorchStore>(store), "lockstep");
    const std::optional<Token> brought = token_to_bring(rank);
    const auto shared = has_token_of_its_own() ? std::nullopt : brought;
    const Round round = agree_on_round(*meeting_place, rank, size, shared, deadline);
    JoinOptions join_options;
    join_options.store = std::make_shared<PrefixStore>(meeting_place, round.name);
    join_options.rank = rank;
    join_options.world_size = size;
    join_options.token = token_of(round, brought, rank);
    join_options.timeout = deadline.remaining();
    const Membership membership = join(join_options, environment);
    const GroupOptions group_options = with_environment({.timeout = options_->timeout});
    group_ = std::make_unique<ProcessGroup>(connect_group(membership, short_name(group_name), group_options, deadline));
  });
}

Backend::~Backend() {
  const auto end = [this] {
    group_.reset();
    completer_.reset();
  };
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const pybind11::gil_scoped_release release;  // the listeners of a Future may need the lock to come to an end
    end();
  } else {
    end();
  }
}

void Backend::abort() { group_->abort("rank " + std::to_string(getRank()) + " called abort()"); }

void Backend::setTimeout(Milliseconds timeout) { options_->timeout = checked(timeout); }

c10d::ErrorType Backend::getError() { return c10d::ErrorType::SUCCESS; }

bool Backend::supportsTensorAlloc(c10::DeviceIndex device) { return device < 0 && group_->shares_memory(); }

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return group_->empty({size}, c10::typeMetaToScalarType(options.dtype()));
}

void Backend::require_open(const char* title) const {
  if (!is_shut_down_) return;
  C10_THROW_ERROR(ValueError, std::string(title) + ": this process group was destroyed; create a new one");
}

CallOptions Backend::within(Milliseconds timeout) const {
  const bool is_unset = timeout == c10d::kUnsetTimeout || timeout == kNoTimeout;
  return {.timeout = checked(is_unset ? options_->timeout : timeout)};
}

Backend::WorkPtr Backend::launch(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                                 const std::function<Started()>& start) {
  require_open(title);
  auto work = c10::make_intrusive<TorchWork>(getRank(), type, title, std::optional(inputs), std::move(outputs),
                                             completer_, start);
  if (!c10d::isP2POp(type)) ++sequence_;  // not for a call that was refused: it never reached the others
  return work;
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  require_open("lockstep:monitored_barrier");
  // Here 0 is a time, as with Gloo, and not the group's timeout: rank 0 does not wait.
  const bool is_now = options.timeout == Milliseconds::zero();
  const CallOptions call = is_now ? CallOptions{.timeout = Duration::zero()} : within(options.timeout);
  with_torch_errors([&] { group_->monitored_barrier(call, wait_all_ranks); });
}

}  // namespace lockstep::python
