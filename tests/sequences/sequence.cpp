#include "tests/sequences/sequence.h"

#include <algorithm>

#include "lockstep/base/format.h"

namespace lockstep::sequences {
namespace {

std::string text_of_bits(unsigned bits, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    if ((bits >> i & 1U) != 0) text += fmt::format("{}{}", text.empty() ? "" : ",", i);
  }
  return text;
}

std::string text_of_forward(const Event& event) {
  std::string text = "forward";
  for (int model = 0; model < kModels; ++model) {
    if (event.through[model]) text += fmt::format(" {}{}", event.local[model] ? "local " : "", "GD"[model]);
  }
  text += fmt::format(" -> slot {}", event.slot);
  if (event.parts != kWhole) {
    text += ", parts";
    for (unsigned rank = 0; rank < kMostRanks; ++rank) text += fmt::format(" {}", event.parts >> (3 * rank) & 7U);
  }
  if (event.weight != 0) text += fmt::format(", weight {}", event.weight);
  if (event.weightless != 0) text += ", weight 0 on ranks " + text_of_bits(event.weightless, kMostRanks);
  if (event.throws != Throws::never) {
    text += event.throws == Throws::in_forward  ? ", throws"
            : event.throws == Throws::at_output ? ", whose backward throws at once"
                                                : ", whose backward throws in the middle";
  }
  if (event.bad != Bad::none)
    text += fmt::format(", {} on rank {}", event.bad == Bad::huge ? "huge" : "Inf", event.rank);
  return text;
}

std::string text_of_zero(const Event& event) {
  switch (event.way) {
    case Way::wrapper: return "zero_grad() of the wrapper";
    case Way::module_none: return "zero_grad(true) of the module";
    case Way::module_zeros: return "zero_grad(false) of the module";
    case Way::optimizer_none: return "zero_grad(true) of the optimizer";
    case Way::optimizer_zeros: return "zero_grad(false) of the optimizer";
    case Way::some_none: return "reset the gradients of parameters " + text_of_bits(event.parts, 12);
    case Way::some_zeros: return "zero the gradients of parameters " + text_of_bits(event.parts, 12);
  }
  return {};
}

std::string name_of(const Event& event) {
  const char model = "GD"[event.model];
  switch (event.kind) {
    case Kind::forward: return text_of_forward(event);
    case Kind::backward:
      return fmt::format("backward of slots {}, loss {}{}", text_of_bits(event.slots, kSlots), event.loss,
                         event.retains ? ", retained" : "");
    case Kind::input_gradient: return fmt::format("autograd::grad of slot {}", event.slot);
    case Kind::drop: return fmt::format("drop slot {}", event.slot);
    case Kind::zero: return fmt::format("{}: {}", model, text_of_zero(event));
    case Kind::step: return fmt::format("{}: optimizer step", model);
    case Kind::clip: return fmt::format("{}: clip_grad_norm", model);
    case Kind::evaluate:
      return fmt::format("{}: evaluate{}", model,
                         event.choice == 0   ? ""
                         : event.choice == 1 ? " with gradients on"
                         : event.choice == 2 ? " in training mode"
                                             : " under no_sync()");
    case Kind::bare: return fmt::format("{}: the module's own forward and backward", model);
    case Kind::freeze: return fmt::format("{}: freeze {}", model, event.choice);
    case Kind::thaw: return fmt::format("{}: thaw all", model);
    case Kind::add_parameter: return fmt::format("{}: register_parameter", model);
    case Kind::add_module: return fmt::format("{}: register_module", model);
    case Kind::replace_module: return fmt::format("{}: replace_module", model);
    case Kind::set_aside: return fmt::format("{}: set the gradients aside", model);
    case Kind::put_back: return fmt::format("{}: {} what was set aside", model, event.choice == 0 ? "put back" : "add");
    case Kind::reload: return fmt::format("{}: reload in another wrapper", model);
    case Kind::sharded:
      return fmt::format("{}: {} backward(s) of each shard, loss {}{}", model, 1 + event.choice, event.loss,
                         event.parts == kWhole ? "" : ", some parts") +
             (event.throws == Throws::never ? "" : ", others throw");
    case Kind::join: break;
  }
  return fmt::format("join with {} {} {} {} batches{}", event.lengths[0], event.lengths[1], event.lengths[2],
                     event.lengths[3], event.divides_by_active ? ", divided by active ranks" : "");
}

std::string lines_of(const Events& events, const std::string& indent) {
  std::string text;
  for (const Event& event : events) text += indent + to_text(event) + "\n" + lines_of(event.body, indent + "  ");
  return text;
}

}  // namespace

DdpOptions options_of(const Setting& setting) {
  DdpOptions options;
  if (setting.buckets_off) options.bucketing = Bucketing::off;
  if (setting.cap_mb != 0) options.bucket_cap_mb = setting.cap_mb;
  if (setting.caps_list) options.bucket_cap_mb_list = {0.00001, 0.0001};
  if (setting.delays) options.delay_all_reduce_named_params = {"bias", "head1.weight"};
  if (setting.samples) options.weighting = Weighting::samples;
  options.find_unused_parameters = setting.find_unused;
  options.skip_all_reduce_unused_params = setting.skip_unused;
  options.static_graph = setting.static_graph;
  options.non_finite = setting.non_finite;
  if (setting.compares) options.compare_parameters_every = 1;
  if (setting.shards != 0) options.lockstep = {.shards = setting.shards, .seed = 7};
  if (setting.reduces_float) options.mixed_precision.reduce_dtype = at::kFloat;
  if (setting.reduces_half) options.mixed_precision.reduce_dtype = at::kHalf;
  return options;
}

double tolerance_of(const Setting& setting) {
  if (setting.hook == Hook::power_sgd) return 1e300;  // all that is known is that values are finite
  if (setting.hook == Hook::fp16 || setting.reduces_half) return 0.05;
  return setting.reduces_float ? 1e-4 : 1e-9;
}

std::string to_text(const Event& event) {
  std::string text = name_of(event);
  if (event.ranks % 16 != 15) text += ", on ranks " + text_of_bits(event.ranks, kMostRanks);
  if (event.only != Only::always) text += event.only == Only::even ? ", in even iterations" : ", in odd iterations";
  return text;
}

std::string to_text(const Sequence& sequence) {
  const Setting& setting = sequence.setting;
  std::string text =
      fmt::format("seed {}: {} ranks over {}", sequence.seed, setting.ranks, setting.over_links ? "links" : "memory");
  const auto add = [&](bool is_set, const char* name) {
    if (is_set) text.append(", ").append(name);
  };
  add(setting.models == 2, "two models");
  add(setting.buckets_off, "bucketing off");
  if (setting.cap_mb != 0) text += fmt::format(", bucket_cap_mb {}", setting.cap_mb);
  add(setting.caps_list, "bucket_cap_mb_list");
  add(setting.delays, "delay_all_reduce_named_params");
  add(setting.samples, "Weighting::samples");
  add(setting.find_unused, "find_unused_parameters");
  add(setting.skip_unused, "skip_all_reduce_unused_params");
  add(setting.static_graph, "static_graph");
  add(setting.norm, "batch norm");
  add(setting.norm_in_eval, "in evaluation mode without the batch norm");
  add(setting.takes_list, "lists as inputs");
  add(setting.hook == Hook::all_reduce, "all_reduce_hook");
  add(setting.hook == Hook::fp16, "fp16_compress_hook");
  add(setting.hook == Hook::power_sgd, "PowerSGD");
  add(setting.shares_optimizer, "ZeroRedundancyOptimizer");
  add(setting.local_aside, "gradients set aside at any time");
  add(setting.compares, "compare_parameters_every 1");
  add(setting.join_keeps, "joins that keep gradients");
  add(setting.join_carries, "joins whose steps use outputs of the last one");
  if (setting.shards != 0) text += fmt::format(", lockstep mode with {} shards", setting.shards);
  add(setting.reduces_float, "reduced in float32");
  add(setting.reduces_half, "reduced in float16");
  add(setting.non_finite == NonFinite::skip_step, "NonFinite::skip_step");
  add(setting.non_finite == NonFinite::fail, "NonFinite::fail");
  add(setting.first_alone, "the first forward on any rank");
  add(setting.buffers_alone, "evaluations after forwards on any rank");
  return text + "\n" + lines_of(sequence.events, "  ");
}

}  // namespace lockstep::sequences
