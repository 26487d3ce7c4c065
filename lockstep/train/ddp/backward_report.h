// A rank's report on its backward, as bytes. report -> bytes -> collective -> bytes of all ranks -> joint report. Pure,
// and without torch. Takes no memory but for the joint report's lists, which are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::internal {

struct BackwardReport {
  double weight = 0;                      // of this rank's gradients
  bool is_uniform = true;                 // all of them have it
  std::optional<std::size_t> non_finite;  // a parameter whose gradient held NaN or Inf
  bool is_of_average = false;             // only after the ranks had averaged it
  std::vector<bool> used;                 // by parameter; empty if it is not asked for
};

struct JointReport {
  double weight = 0;       // the sum over the ranks, in rank order
  bool is_uniform = true;  // on all ranks
  std::vector<bool> used;
  std::vector<std::pair<int, std::size_t>> non_finite;  // (rank, parameter)
  std::optional<std::size_t> average;                   // that is not finite
};

// The length of a report on the use of this number of parameters.
std::size_t report_bytes(std::size_t told_parameters);
// REQUIRES: bytes.size() == report_bytes(report.used.size()).
void encode_report(const BackwardReport& report, std::span<std::uint8_t> bytes);
// `told`: the reports of all ranks, of equal length. `parameters`: how many the model has. Error{corrupt_data} names
// the rank whose report has a parameter that does not exist, or a weight that is negative or not finite.
void join_reports(std::span<const std::uint8_t> told, std::size_t told_parameters, std::size_t parameters,
                  JointReport& joint);

}  // namespace lockstep::internal
