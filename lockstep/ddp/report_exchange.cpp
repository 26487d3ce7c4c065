#include "lockstep/ddp/report_exchange.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <span>

#include "lockstep/group/believed.h"

namespace lockstep {
namespace {

std::span<std::uint8_t> bytes_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

const JointReport& ReportExchange::exchange(const BackwardReport& mine, std::size_t parameters,
                                            const ProcessGroup& group, const CallOptions& call) {
  const auto length = static_cast<std::int64_t>(report_bytes(mine.used.size()));
  if (!sent_.defined() || sent_.numel() != length) {
    sent_ = at::empty({length}, at::kByte);
    told_ = at::empty({group.size() * length}, at::kByte);
  }
  encode_report(mine, bytes_of(sent_));
  if (group.size() == 1) {
    std::memcpy(told_.mutable_data_ptr(), sent_.const_data_ptr(), sent_.nbytes());
  } else {
    group.all_gather_into(told_, sent_, call);
  }
  believed(group, [&] { join_reports(bytes_of(told_), mine.used.size(), parameters, joint_); });
  return joint_;
}

}  // namespace lockstep
