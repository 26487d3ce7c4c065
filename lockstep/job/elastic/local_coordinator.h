// LocalCoordinator is the first host's part of a job: it answers the agents that connect to its listener, if others
// can, carries out what the JobMachine decides, hosts the store of each attempt, and shows what all ranks print. The
// first host's own ranks are told the same as the others', through the functions of Coordinator.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/job/elastic/agent_link.h"
#include "lockstep/job/elastic/agent_options.h"
#include "lockstep/job/elastic/coordinator.h"
#include "lockstep/job/elastic/endpoint_listener.h"
#include "lockstep/job/elastic/host_output.h"
#include "lockstep/job/elastic/job_hang.h"
#include "lockstep/job/elastic/job_machine.h"
#include "lockstep/job/launch/job_store.h"

namespace lockstep::internal {

class LocalCoordinator : public Coordinator {
 public:
  // All but the listener are borrowed.
  // listener: nothing for a job on this host alone. own: of this host.
  LocalCoordinator(const AgentOptions& options, std::optional<EndpointListener> listener, HostOutput& output,
                   Hello own);

  void watch(std::vector<pollfd>& set) const override;
  Deadline wake_at() const override;
  void tend() override;
  void post(const AgentMessage& message) override { hear(0, message); }
  std::optional<AgentMessage> take() override;
  bool yields() const override { return yields_; }
  std::vector<Outcome> outcomes() const override { return outcomes_; }
  void close() override;

 private:
  // An agent that has connected; of another job, or one of this job's hosts.
  struct Connection {
    AgentLink link;
    std::optional<Hello> hello = {};
    int number = -1;              // of its host in the machine
    std::size_t shown_bytes = 0;  // of its output, not confirmed yet
    bool has_parted = false;      // no longer a host of the job
    bool is_frozen = false;       // announced
    std::set<int> asks_hosts{};   // from outside: whose HostStatus it has not got yet
    bool asks_status = false;
    bool waits_for_end = false;  // from outside
  };

  void serve(Connection& connection);
  void receive(Connection& connection, const AgentMessage& message);
  void greet(Connection& connection, const Hello& hello);
  int port_of(const std::string& rdzv_id) const;
  void look_if_frozen(Connection& connection);
  void part_from_failed();
  void part_from(Connection& connection);
  bool is_alone() const { return machine_.hosts().size() == 1 && machine_.generation() < 0; }
  void hear(int host, const AgentMessage& message);
  void hear_request(int host, int signal, TimePoint now);
  void dismiss(int host);
  void keep_out(int host, int other);
  void leave_to_others();
  void take_over(const Handover& handover);
  void look_for_hang();
  void obey();
  void obey(const JobOrder& order);
  void try_to_start();
  void start();
  void report();
  void finish();
  void tell(int host, const AgentMessage& message);
  void tell_slots(const AgentMessage& message);
  void announce(const std::string& line);
  void tell_of_waiting();
  void tell_event(JobEvent::Kind kind) const;
  void answer(Connection& connection, const AskStatus& question);
  void answer(Connection& connection, const StopJob& question);
  void pass_on_status(int host, const HostStatus* status);
  bool is_elsewhere(Connection& connection, const std::string& rdzv_id);
  void tell_monitor() const;
  void tell_monitor(int host, const RankCounts& counts) const;
  void tell_monitor(const JobHang::Result& result) const;
  std::string store_address() const;
  std::string shown_name(const HostEntry& host) const;
  std::string address_of(int host) const;
  const Hello* hello_from(int host) const;

  const AgentOptions& options_;
  std::optional<EndpointListener> listener_;
  HostOutput& output_;
  std::string job_id_;
  Hello own_hello_;
  JobMachine machine_;
  int next_number_ = 1;
  std::list<Connection> connections_;
  struct OtherJob {
    int port;
    const Connection* connection;
  };
  std::map<std::string, OtherJob> other_jobs_;  // by rdzv id
  std::set<std::string> refused_;               // already announced
  std::deque<AgentMessage> inbox_;              // for the ranks of this host
  std::unique_ptr<JobStore> store_;             // of the attempt
  std::optional<JobHang> hang_;                 // likewise
  std::vector<Outcome> outcomes_;
  Deadline tell_waiting_at_;
  std::optional<TimePoint> ends_since_;  // the ranks are to end
  bool yields_ = false;
};

}  // namespace lockstep::internal
