// Two hosts that do not reach each other, while the first host reaches both: a broken route or a firewall between them.
// Each one's ranks say that the other's are lost, though their agents are there. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/job/elastic/slots.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

struct Separation {
  int leaver = -1;  // HostEntry::number of the one that the job goes on without
  int other = -1;
  int leaver_rank = -1;  // that has lost `other_rank`, and is lost to it
  int other_rank = -1;
};

// What the ends of an attempt's ranks show; nothing unless ranks of two hosts name each other as lost and none of
// theirs has failed by itself. Of several such hosts the one that most others do not reach leaves, else the one with
// the higher node rank; never the first host.
std::optional<Separation> find_separation(const Outcome& outcome, const std::vector<Slot>& slots);

// Why the leaver is lost; `other`: the other host's name.
std::string describe_leaver(const Separation& separation, const std::string& other);
// Where neither can be left out.
std::string describe_pair(const Separation& separation, const std::string& leaver, const std::string& other);

}  // namespace lockstep::internal
