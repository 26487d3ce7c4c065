// Marks by which a far end reports its agent to the launcher, among the standard error of the agent and its ranks:
// its stage, and how it has ended. A mark has the order's secret, so no rank can print one. far end -> bytes ->
// MarkReader -> text without marks. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

enum class AgentStage {
  absent,     // nothing was heard of it yet
  gathering,  // it looks for the others
  joined,     // it has a place in the job
};

struct AgentEnd {
  AgentStage stage = AgentStage::absent;  // that it had reached
  ExitStatus status;
};

std::string stage_mark(const std::string& secret, AgentStage stage);
std::string end_mark(const std::string& secret, const AgentEnd& end);

class MarkReader {
 public:
  explicit MarkReader(const std::string& secret);

  // The text without marks. What may be the beginning of one is kept until more comes.
  std::string take(std::string_view bytes);
  // Nothing more comes: what was kept.
  std::string rest() { return std::exchange(unread_, {}); }

  AgentStage stage() const { return stage_; }
  const std::optional<AgentEnd>& end() const { return end_; }

 private:
  bool read_mark(std::string_view words);

  std::string head_;
  std::string unread_;
  AgentStage stage_ = AgentStage::absent;
  std::optional<AgentEnd> end_;
};

}  // namespace lockstep::internal
