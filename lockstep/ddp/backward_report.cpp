#include "lockstep/ddp/backward_report.h"

#include <ATen/ops/zeros.h>

#include <cstring>

namespace lockstep {
namespace {

// As it travels; behind it one bit a parameter.
struct Head {
  double weight;
  std::int64_t non_finite;  // -1: none
};

}  // namespace

JointReport exchange(const BackwardReport& mine, const ProcessGroup& group) {
  const std::size_t parameters = mine.used.size();
  const at::Tensor sent = at::zeros({static_cast<std::int64_t>(sizeof(Head) + (parameters + 7) / 8)}, at::kByte);
  auto* bytes = sent.mutable_data_ptr<std::uint8_t>();
  const Head head{mine.weight, mine.non_finite ? static_cast<std::int64_t>(*mine.non_finite) : -1};
  std::memcpy(bytes, &head, sizeof head);
  for (std::size_t i = 0; i < parameters; ++i) {
    if (mine.used[i]) bytes[sizeof head + i / 8] |= static_cast<std::uint8_t>(1U << (i % 8));
  }
  JointReport joint;
  joint.used.resize(parameters);
  int rank = 0;
  for (const at::Tensor& told : group.all_gather(sent, {.name = "backward report"})) {
    const auto* theirs = told.const_data_ptr<std::uint8_t>();
    Head their_head;
    std::memcpy(&their_head, theirs, sizeof their_head);
    joint.weight += their_head.weight;
    if (their_head.non_finite >= 0) joint.non_finite.emplace_back(rank, their_head.non_finite);
    for (std::size_t i = 0; i < parameters; ++i) {
      if ((theirs[sizeof head + i / 8] >> (i % 8) & 1) != 0) joint.used[i] = true;
    }
    ++rank;
  }
  return joint;
}

}  // namespace lockstep
