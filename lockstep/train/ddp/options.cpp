#include "lockstep/train/ddp/options.h"

#include <algorithm>
#include <utility>

#include "lockstep/comm/adapters/backends.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"

namespace lockstep {

using namespace internal;

namespace {

std::string name_of(const std::optional<c10::ScalarType>& dtype) { return dtype ? c10::str(*dtype) : "own"; }

void check_buckets(const DdpOptions& options) {
  if (options.bucket_cap_mb && !options.bucket_cap_mb_list.empty()) {
    throw options_error("bucket_cap_mb and bucket_cap_mb_list are both set; give one of them");
  }
  std::vector<double> caps = options.bucket_cap_mb_list;
  if (options.bucket_cap_mb) caps.push_back(*options.bucket_cap_mb);
  for (const double cap : caps) {
    if (!(cap >= 0)) throw options_error("a bucket cap is " + std::to_string(cap) + " MiB; give 0 or more");
  }
}

void check_lockstep_mode(const DdpOptions& options, const ProcessGroup& group) {
  if (options.lockstep.shards == 0) return;
  const std::pair<bool, const char*> others_set[] = {
      {options.find_unused_parameters, "find_unused_parameters, which is always on in this mode"},
      {options.static_graph, "static_graph"},
      {options.mixed_precision.enabled(), "mixed_precision"},
      {options.weighting != Weighting::ranks, "weighting"},
      {options.non_finite != NonFinite::ignore, "non_finite"},
      {!options.delay_all_reduce_named_params.empty(), "delay_all_reduce_named_params"}};
  for (const auto& [is_set, name] : others_set) {
    if (is_set) throw options_error(std::string("lockstep mode does not work with ") + name + "; leave it unset");
  }
  // It needs sums in an order that other libraries do not promise; between two ranks there is only one.
  const std::vector<std::string> others = backends();
  if (group.size() <= 2 || std::ranges::find(others, group.transport()) == others.end()) return;
  throw options_error("lockstep mode reduces in tree order, which the " + std::string(group.transport()) +
                      " backend does not support with " + std::to_string(group.size()) +
                      " ranks; make the group with the native backend (GroupOptions::backend or LOCKSTEP_BACKEND)");
}

}  // namespace

void internal::check_options(const DdpOptions& options, const ProcessGroup& group) {
  check_buckets(options);
  if (options.skip_all_reduce_unused_params && !options.find_unused_parameters) {
    throw options_error("skip_all_reduce_unused_params needs find_unused_parameters");
  }
  check_lockstep_mode(options, group);
  const MixedPrecision& mixed = options.mixed_precision;
  for (const auto& dtype : {mixed.param_dtype, mixed.reduce_dtype, mixed.buffer_dtype}) {
    if (dtype && !c10::isFloatingType(*dtype)) {
      throw options_error("mixed_precision names the type " + c10::str(*dtype) +
                          ", which is not a floating-point type");
    }
  }
  if (options.compare_parameters_every < 0) {
    throw options_error("compare_parameters_every is " + std::to_string(options.compare_parameters_every) +
                        "; give 0 or more");
  }
}

std::string internal::text_of(const DdpOptions& options) {
  std::string caps;
  for (const double cap : options.bucket_cap_mb_list) caps.append(" ").append(std::to_string(cap));
  return "options bucketing=" + std::to_string(static_cast<int>(options.bucketing)) +
         " bucket_cap_mb=" + (options.bucket_cap_mb ? std::to_string(*options.bucket_cap_mb) : "default") +
         " bucket_cap_mb_list=[" + caps + "] init_sync=" + std::to_string(options.init_sync) +
         " forward_sync_buffers=" + std::to_string(options.forward_sync_buffers) +
         " find_unused_parameters=" + std::to_string(options.find_unused_parameters) +
         " skip_all_reduce_unused_params=" + std::to_string(options.skip_all_reduce_unused_params) +
         " static_graph=" + std::to_string(options.static_graph) +
         " delayed=" + std::to_string(options.delay_all_reduce_named_params.size()) +
         " mixed_precision=" + name_of(options.mixed_precision.param_dtype) + "," +
         name_of(options.mixed_precision.reduce_dtype) + "," + name_of(options.mixed_precision.buffer_dtype) +
         " lockstep mode=" + (options.lockstep.shards == 0 ? "off" : "on") +
         " weighting=" + std::to_string(static_cast<int>(options.weighting)) +
         " non_finite=" + std::to_string(static_cast<int>(options.non_finite)) +
         " compare_parameters_every=" + std::to_string(options.compare_parameters_every);
}

}  // namespace lockstep
