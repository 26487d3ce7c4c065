#include "lockstep/comm/group/world.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/line_buffering.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/adapters/backends.h"
#include "lockstep/comm/group/connect.h"
#include "lockstep/comm/group/stop_agreement.h"
#include "lockstep/comm/group/uncaught.h"
#include "lockstep/comm/rendezvous/shared_gpus.h"
#include "lockstep/comm/store/store_server.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr Duration kTimeToRead = std::chrono::seconds(1);

std::string uuid_of(const std::optional<c10::Device>& device) {
  if (!device || !device->is_cuda()) return "";
  return gpu_uuid(device->index());
}

bool behind_a_launcher() { return EnvironmentReader().has("LOCKSTEP_STORE"); }

// All ranks see the same members, and so the same error.
void check_gpus(const Membership& membership, SharedGpu shared, const std::string& backend) {
  if (shared == SharedGpu::allow) return;
  for (const auto& [lowest, text] : shared_gpus(membership.members)) {
    if (backend == "nccl") {
      throw abandon_joining(membership, Error(ErrorKind::invalid_argument, text + "; or use the native backend"));
    }
    if (shared == SharedGpu::refuse) throw abandon_joining(membership, Error(ErrorKind::invalid_argument, text));
    if (lowest == membership.rank) log_warning(text);
  }
}

}  // namespace

Place::Place(Membership membership) : membership_(std::make_unique<Membership>(std::move(membership))) {}
Place::~Place() {
  // Ranks that are splitting a group may still have to read, in the store that ends here, why this one left.
  if (membership_ != nullptr && membership_->hosted) membership_->hosted->wait_for_wills(Deadline::after(kTimeToRead));
}
Place::Place(Place&&) noexcept = default;

int Place::local_rank() const { return membership_->local_rank; }
int Place::local_size() const { return membership_->local_size; }
Store& Place::store() const { return *membership_->store; }

World::World(Membership membership, ProcessGroup group, std::vector<int> stop_signals)
    : Place(std::move(membership)),
      ProcessGroup(std::move(group)),
      stop_(std::make_unique<StopAgreement>(std::move(stop_signals))),
      watch_(std::make_unique<UncaughtWatch>(*this)),
      exceptions_(std::uncaught_exceptions()) {}

World::World(World&&) noexcept = default;

World::~World() noexcept(false) {
  if (watch_ == nullptr || !watch_->is_here()) return;
  if (std::uncaught_exceptions() <= exceptions_) {
    await_device_calls();
    return;
  }
  try {
    const std::string noted = noted_failure();
    abort(noted.empty() ? "an exception ended its program; see its standard error" : "it failed in " + noted);
  } catch (const std::exception&) {  // no memory for the text
    abort("an exception ended its program");
  }
}

bool World::stop_requested() const { return stop_->ask(*this); }

JoinOptions InitOptions::join_options() const {
  return {.init_method = init_method,
          .store = store,
          .rank = rank,
          .world_size = world_size,
          .token = token,
          .bootstrap = bootstrap,
          .timeout = join_timeout,
          .notice_after = notice_after,
          .gpu = uuid_of(device)};
}

GroupOptions InitOptions::group_options() const {
  return {.backend = backend,
          .timeout = timeout,
          .first_report = first_report,
          .transport = transport,
          .connections = connections,
          .checksums = checksums,
          .call_sites = call_sites,
          .device = device};
}

bool is_available(std::string_view backend) noexcept { return has_backend(backend); }

World init_process_group(const InitOptions& options) {
  GroupOptions group_options = with_environment(options.group_options());
  group_options.backend = choose_backend(options.backend);  // before anybody is kept waiting
  const Deadline deadline = Deadline::after(options.join_timeout);
  JoinOptions join_options = options.join_options();
  if (!join_options.bootstrap) join_options.bootstrap = bootstrap_of(group_options.backend);
  Membership membership = join(join_options, process_environment);
  if (membership.size > 1) set_log_rank(membership.rank);
  check_gpus(membership, options.shared_gpu, group_options.backend);
  if (behind_a_launcher()) buffer_output_by_line();
  std::optional<ProcessGroup> group;
  try {
    group = connect_group(membership, "world", group_options, deadline);
  } catch (const Error& error) {
    // Nobody else knows which rank it could not reach.
    if (is_watched()) process_recorder().memory().note_failed_start(error.kind(), error.detail().peer);
    throw;
  }
  return World(std::move(membership), *std::move(group), options.stop_signals);
}

}  // namespace lockstep
