#include "lockstep/train/ddp/backward_report.h"

#include <cstring>

#include "lockstep/base/checked.h"

namespace lockstep::internal {
namespace {

// The transmitted form; followed by one bit a parameter.
struct Head {
  double weight;
  std::int64_t non_finite;  // -1: none
  std::uint64_t flags;
};
constexpr std::uint64_t kIsUneven = 1, kIsOfAverage = 2;

}  // namespace

std::size_t report_bytes(std::size_t told_parameters) { return sizeof(Head) + (told_parameters + 7) / 8; }

void encode_report(const BackwardReport& report, std::span<std::uint8_t> bytes) {
  std::memset(bytes.data(), 0, bytes.size());
  const Head head{report.weight, report.non_finite ? static_cast<std::int64_t>(*report.non_finite) : -1,
                  (report.is_uniform ? 0 : kIsUneven) | (report.is_of_average ? kIsOfAverage : 0)};
  std::memcpy(bytes.data(), &head, sizeof head);
  for (std::size_t i = 0; i < report.used.size(); ++i) {
    if (report.used[i]) bytes[sizeof head + i / 8] |= static_cast<std::uint8_t>(1U << (i % 8));
  }
}

void join_reports(std::span<const std::uint8_t> told, std::size_t told_parameters, std::size_t parameters,
                  JointReport& joint) {
  joint.weight = 0;
  joint.is_uniform = true;
  joint.average.reset();
  joint.non_finite.clear();
  joint.used.assign(told_parameters, false);
  const std::size_t length = report_bytes(told_parameters);
  for (int rank = 0; !told.empty(); ++rank, told = told.subspan(length)) {
    const Origin origin("report on its backward", rank);
    checked_between(told.size(), length, told.size(), "length", origin);
    Head head;
    std::memcpy(&head, told.data(), sizeof head);
    joint.weight += checked_weight(head.weight, "weight of its gradients", origin);
    if ((head.flags & kIsUneven) != 0) joint.is_uniform = false;
    if (head.non_finite != -1) {
      const std::size_t bad = checked_index(head.non_finite, parameters, "number of a parameter", origin);
      if ((head.flags & kIsOfAverage) == 0) {
        joint.non_finite.emplace_back(rank, bad);
      } else if (!joint.average || bad < *joint.average) {
        joint.average = bad;
      }
    }
    for (std::size_t i = 0; i < told_parameters; ++i) {
      if ((told[sizeof head + i / 8] >> (i % 8) & 1) != 0) joint.used[i] = true;
    }
  }
}

}  // namespace lockstep::internal
