#include "lockstep/ddp/backward_report.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace lockstep {
namespace {

// As it travels; behind it one bit a parameter.
struct Head {
  double weight;
  std::int64_t non_finite;  // -1: none
};

}  // namespace

const JointReport& ReportExchange::exchange(const BackwardReport& mine, const ProcessGroup& group,
                                            const CallOptions& call) {
  const std::size_t parameters = mine.used.size(), length = sizeof(Head) + (parameters + 7) / 8;
  const auto ranks = static_cast<std::size_t>(group.size());
  if (!sent_.defined() || sent_.nbytes() != length) {
    sent_ = at::empty({static_cast<std::int64_t>(length)}, at::kByte);
    told_ = at::empty({static_cast<std::int64_t>(ranks * length)}, at::kByte);
  }
  auto* bytes = sent_.mutable_data_ptr<std::uint8_t>();
  std::memset(bytes, 0, length);
  const Head head{mine.weight, mine.non_finite ? static_cast<std::int64_t>(*mine.non_finite) : -1};
  std::memcpy(bytes, &head, sizeof head);
  for (std::size_t i = 0; i < parameters; ++i) {
    if (mine.used[i]) bytes[sizeof head + i / 8] |= static_cast<std::uint8_t>(1U << (i % 8));
  }
  if (ranks == 1) {
    std::memcpy(told_.mutable_data_ptr(), bytes, length);
  } else {
    group.all_gather_into(told_, sent_, call);
  }
  joint_.weight = 0;
  joint_.non_finite.clear();
  joint_.used.assign(parameters, false);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto* theirs = told_.const_data_ptr<std::uint8_t>() + rank * length;
    Head their_head;
    std::memcpy(&their_head, theirs, sizeof their_head);
    joint_.weight += their_head.weight;
    if (their_head.non_finite >= 0) joint_.non_finite.emplace_back(rank, their_head.non_finite);
    for (std::size_t i = 0; i < parameters; ++i) {
      if ((theirs[sizeof head + i / 8] >> (i % 8) & 1) != 0) joint_.used[i] = true;
    }
  }
  return joint_;
}

}  // namespace lockstep
