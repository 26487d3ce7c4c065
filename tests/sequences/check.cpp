#include "tests/sequences/check.h"

#include <ATen/ATen.h>

#include <chrono>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/base/format.h"
#include "tests/sequences/oracle.h"
#include "tests/sequences/play.h"
#include "tests/support/local_groups.h"

namespace lockstep::sequences {

struct Checker::Groups {
  std::map<std::pair<int, bool>, std::vector<ProcessGroup>> by_size;

  const std::vector<ProcessGroup>& of(const Setting& setting) {
    auto& groups = by_size[{setting.ranks, setting.over_links}];
    if (groups.empty()) {
      groups = testing::local_groups(setting.ranks, setting.over_links ? testing::Over::links : testing::Over::arena,
                                     {.timeout = std::chrono::seconds(3)});
    }
    return groups;
  }
  void give_up(const Setting& setting) { by_size.erase({setting.ranks, setting.over_links}); }
};

Checker::Checker() : groups_(std::make_unique<Groups>()) {}
Checker::~Checker() = default;

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& exception) {
    return exception.what_without_backtrace();
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "something that is no exception";
  }
}

std::optional<std::string> Checker::check(const Sequence& sequence) {
  std::vector<Occurrence> expected;
  try {
    expected = expected_of(sequence);
  } catch (const Unclear&) {
    ++unclear_;
    return std::nullopt;
  }
  const auto& groups = groups_->of(sequence.setting);
  const auto errors = testing::run_ranks(sequence.setting.ranks, [&](int rank) {
    const ProcessGroup& group = groups[static_cast<std::size_t>(rank)];
    try {
      play(sequence, expected, group);
    } catch (...) {
      group.abort("another rank failed");
      throw;
    }
  });
  std::optional<std::string> first;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank]) continue;
    const std::string text = text_of(errors[rank]);
    // What the others say of the rank that failed is less than what it says itself.
    if (!first || first->find("another rank failed") != std::string::npos) first = text;
  }
  if (first) groups_->give_up(sequence.setting);
  return first;
}

}  // namespace lockstep::sequences
