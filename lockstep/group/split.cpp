// The forms of split() and new_group() that are made of one: ProcessGroup::part().
#include <algorithm>
#include <string>

#include "lockstep/adapters/backends.h"
#include "lockstep/group/connect.h"
#include "lockstep/group/parts.h"
#include "lockstep/group/process_group.h"

namespace lockstep {

std::optional<ProcessGroup> ProcessGroup::split(int color, int key, const GroupOptions& options) const {
  GroupOptions chosen = with_environment(options);
  chosen.backend = choose_backend(options.backend);
  const char* const checksums = chosen.checksums == Checksums::on ? "on" : "off";
  return part(color, key, chosen,
              "split with " + describe_choices(chosen) + ", connections " + std::to_string(chosen.connections) +
                  ", checksums " + checksums);
}

std::optional<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) const {
  const int key = key_in(ranks);
  return split(key < 0 ? -1 : 0, key);
}
std::optional<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks, const GroupOptions& options) const {
  const int key = key_in(ranks);
  return split(key < 0 ? -1 : 0, key, options);
}

// -1 if this rank is none of them. Whoever gives other ranks is told.
int ProcessGroup::key_in(const std::vector<int>& ranks) const {
  barrier({.name = name_of_part(ranks, size())});
  const auto found = std::find(ranks.begin(), ranks.end(), rank());
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

}  // namespace lockstep
