// What a program says of its world, in one list: init_process_group({.backend = "gloo", .timeout = 60s}). Everything
// has a default, and what is not said here is taken from the environment or the URL.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/group/process_group.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

struct InitOptions {
  std::string backend = {};                   // as GroupOptions::backend
  std::string init_method = {};               // as JoinOptions::init_method
  Duration timeout = GroupOptions().timeout;  // of each call
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::shared_ptr<Store> store = {};
  // What tensors are on. With a GPU, a backend that nobody names is NCCL where the build has it. The same on all ranks.
  std::optional<c10::Device> device = {};

  // As in JoinOptions.
  std::optional<Token> token = {};
  std::function<Bootstrap()> bootstrap = {};
  Duration join_timeout = JoinOptions().timeout;
  Duration notice_after = JoinOptions().notice_after;

  // As in GroupOptions.
  Duration first_report = GroupOptions().first_report;
  Transport transport = GroupOptions().transport;
  int connections = GroupOptions().connections;
  Checksums checksums = GroupOptions().checksums;
  AfterMismatch after_mismatch = GroupOptions().after_mismatch;
  CallSites call_sites = GroupOptions().call_sites;

  JoinOptions join_options() const;
  GroupOptions group_options() const;
};

}  // namespace lockstep
