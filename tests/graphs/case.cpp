#include "tests/graphs/case.h"

#include <algorithm>

#include "lockstep/base/format.h"

namespace lockstep::testing {

DdpOptions options_of(const Mode& mode) {
  DdpOptions options;
  if (mode.buckets_off) options.bucketing = Bucketing::off;
  if (mode.cap_mb != 0) options.bucket_cap_mb = mode.cap_mb;
  options.find_unused_parameters = mode.find_unused;
  // What the bare module gives to a part that the wrapper's backward leaves out stays the rank's own, and is applied.
  if (mode.find_unused) options.compare_parameters_every = 0;
  options.skip_all_reduce_unused_params = mode.skip_unused;
  options.static_graph = mode.static_graph;
  if (mode.samples) options.weighting = Weighting::samples;
  if (mode.mixed) options.mixed_precision.param_dtype = at::kBFloat16;
  if (mode.reduces_wide) options.mixed_precision.reduce_dtype = at::kFloat;
  if (mode.skips_non_finite) options.non_finite = NonFinite::skip_step;
  if (mode.shards != 0) options.lockstep = {.shards = mode.shards, .seed = 7};
  return options;
}

double tolerance_of(const Case& one) {
  if (one.mode.mixed) {
    // Gradients of two forwards are added up in bfloat16 by autograd, in float32 by hand; those of a gradient's
    // gradient in bfloat16, in any order.
    const bool adds = std::any_of(one.schedule.begin(), one.schedule.end(), [](const TrainingStep& step) {
      return step.kind == StepKind::two_forwards || step.kind == StepKind::crossed || step.kind == StepKind::penalty;
    });
    return adds ? 0.05 : 0;
  }
  if (!one.mode.samples && !one.mode.sync_norm && !one.mode.divides_by_active) return 0;
  const bool rounds = std::any_of(one.graph.parameters.begin(), one.graph.parameters.end(),
                                  [](const ParameterSpec& spec) { return spec.dtype == at::kBFloat16; });
  return rounds ? 0.05 : one.mode.sync_norm ? 1e-2 : 1e-3;
}

std::string to_text(const Case& one) {
  const Mode& mode = one.mode;
  std::string text =
      fmt::format("seed {}: {} ranks over {}", one.seed, mode.ranks, mode.over_links ? "links" : "memory");
  if (mode.buckets_off) text += ", bucketing off";
  if (mode.cap_mb != 0) text += fmt::format(", bucket_cap_mb {}", mode.cap_mb);
  if (mode.find_unused) text += ", find_unused_parameters";
  if (mode.skip_unused) text += ", skip_all_reduce_unused_params";
  if (mode.static_graph) text += ", static_graph";
  if (mode.hook == Hook::all_reduce) text += ", all_reduce_hook";
  if (mode.hook == Hook::keeping) text += ", a hook that keeps its bucket";
  if (mode.samples) text += ", Weighting::samples";
  if (mode.mixed) text += mode.reduces_wide ? ", bfloat16 reduced in float32" : ", bfloat16";
  if (mode.skips_non_finite) text += ", NonFinite::skip_step";
  if (mode.sync_norm) text += ", synchronised batch norm";
  if (mode.divides_by_active) text += ", divided by active ranks";
  if (mode.shards != 0) text += fmt::format(", lockstep mode with {} shards", mode.shards);
  text.append("\n").append(to_text(one.graph)).append("schedule:\n");
  for (const TrainingStep& step : one.schedule) text += to_text(step);
  return text;
}

}  // namespace lockstep::testing
