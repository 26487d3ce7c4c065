#include "lockstep/train/ddp/checks/ddp_errors.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostNames = 10;

Error backward_error(int rank, const std::string& text, ErrorKind kind = ErrorKind::invalid_argument) {
  return Error(kind, text, {.rank = rank, .operation = "backward"});
}

}  // namespace

void throw_on_all_ranks(const ProcessGroup& group, const Error& error) {
  group.abort(error.what());
  throw error;
}

Error no_gradient_error(int rank, const std::vector<std::string>& parameters) {
  const std::size_t count = parameters.size(), shown = std::min(count, kMostNames);
  std::string names =
      fmt::format("{}", fmt::join(parameters.begin(), parameters.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (count > shown) names += fmt::format(", and {} more", count - shown);
  return backward_error(
      rank,
      fmt::format("{} parameters got no gradient in this backward pass on rank {}: {}. Every parameter that requires "
                  "a gradient must take part in the loss on every rank; use them all, freeze them with "
                  "requires_grad_(false) before the model is wrapped, or set find_unused_parameters",
                  count, rank, names));
}

Error late_gradient_error(int rank, const std::string& parameter, bool thought_unused) {
  return backward_error(
      rank,
      fmt::format(
          "parameter {} got {}, the last one after its reduction had begun on rank {}. Parts of a graph "
          "that are recomputed in the backward pass (checkpointing) cause this; if the graph is the same in every "
          "iteration, set static_graph",
          parameter,
          thought_unused ? "a gradient although no output of the model depended on it"
                         : "several gradients in one backward pass",
          rank));
}

Error graph_changed_error(int rank, const std::string& parameter, int gradients, int in_first) {
  return backward_error(
      rank,
      fmt::format("static_graph: parameter {} got {} gradients in this backward pass on rank {}, and {} in the first "
                  "one. Unset static_graph for a graph that changes, and set find_unused_parameters if it "
                  "leaves out parameters",
                  parameter, gradients, rank, in_first));
}

Error non_finite_error(int rank, const std::vector<std::pair<int, std::string>>& where) {
  std::vector<std::string> places;
  for (const auto& [bad, parameter] : where)
    places.push_back(fmt::format("rank {} in the gradient of {}", bad, parameter));
  return backward_error(
      rank,
      fmt::format("NaN or Inf on {}. All gradients of this backward pass were dropped on all ranks, so "
                  "that an optimizer's step changes nothing",
                  fmt::join(places, "; ")),
      ErrorKind::corrupt_data);
}

Error overflow_error(int rank, const std::string& parameter) {
  return backward_error(
      rank,
      fmt::format("NaN or Inf in the averaged gradient of {}, though the ranks' own gradients are "
                  "finite: their sum, or their conversion by a hook or reduce_dtype, is too large "
                  "for its type. All gradients of this backward pass were dropped on all ranks, so that "
                  "an optimizer's step changes nothing. Scale the loss, or reduce in a wider type",
                  parameter),
      ErrorKind::corrupt_data);
}

Error stray_gradients_error(int rank) {
  return Error(
      ErrorKind::invalid_argument,
      fmt::format(
          "on rank {} a backward pass gave gradients to parameters without going through the last forward pass of "
          "DistributedDataParallel, whose output still exists, so they were not averaged. To train on this "
          "loss, compute it from the output of ddp(...) (add 0 * output.sum() if the loss does not use it). "
          "Otherwise destroy that output first, or compute the loss under NoGradGuard",
          rank),
      {.rank = rank, .operation = "forward"});
}

std::string_view only_stray_backwards_text() {
  return "DistributedDataParallel: no backward pass so far went through ddp(...), so no gradient was averaged and each "
         "rank "
         "trains alone. Compute the loss from ddp(x) instead of model->forward(x). To keep gradients local for now, "
         "call ddp(x) under ddp.no_sync()";
}

Error replaced_parameter_error(int rank, const std::string& parameter) {
  return Error(
      ErrorKind::invalid_argument,
      fmt::format(
          "on rank {} the dtype or device of parameter {} changed after the model was wrapped in "
          "DistributedDataParallel, so its gradients would not be averaged. Convert the model first, then wrap it",
          rank, parameter),
      {.rank = rank, .operation = "forward"});
}

Error foreign_parameter_error(int rank, const std::string& parameter) {
  return Error(
      ErrorKind::invalid_argument,
      fmt::format("on rank {} parameter {} was registered, or replaced another one, after the model was wrapped in "
                  "DistributedDataParallel, so each rank would train it alone. Complete the model first, then wrap it; "
                  "if it grows later, destroy the wrapper and the optimizer on all ranks and create new ones",
                  rank, parameter),
      {.rank = rank, .operation = "forward"});
}

Error resized_parameter_error(int rank, const std::string& parameter, const std::string& before,
                              const std::string& now) {
  return Error(
      ErrorKind::invalid_argument,
      fmt::format(
          "on rank {} parameter {} had shape {} when it was wrapped in DistributedDataParallel, and has {} "
          "now. If its shape must change, destroy the wrapper and the optimizer on all ranks and create new ones",
          rank, parameter, before, now),
      {.rank = rank, .operation = "forward"});
}

Error unfrozen_parameter_error(int rank, const std::string& parameter) {
  return Error(ErrorKind::invalid_argument,
               fmt::format("on rank {} parameter {} was frozen when it was wrapped in DistributedDataParallel and "
                           "requires a gradient now, which would not be averaged. Call requires_grad_() before the "
                           "model is wrapped, or destroy the wrapper on all ranks and wrap the model again",
                           rank, parameter),
               {.rank = rank, .operation = "forward"});
}

Error chosen_inputs_error(int rank, const std::string& parameter) {
  return backward_error(
      rank, fmt::format("on rank {} backward was called with `inputs` that include parameter {}. With mixed precision "
                        "the graph holds a copy of it, so it would get no gradient. Call backward without "
                        "`inputs`, or set requires_grad of the others to false before the forward pass",
                        rank, parameter));
}

Error backward_outside_error() {
  return Error(
      ErrorKind::invalid_argument,
      "lockstep mode: this backward pass goes through a forward pass outside of for_each_shard(), so its gradients "
      "would not be averaged; do both in the callback of for_each_shard()");
}

Error destroyed_wrapper_error() {
  return Error(ErrorKind::invalid_argument,
               "DistributedDataParallel: this backward pass goes through a forward pass of a wrapper that has been "
               "destroyed since, "
               "so its gradients would not be averaged. Keep the wrapper until the backward pass has ended");
}

Error mixed_join_error(int rank) {
  return backward_error(
      rank,
      fmt::format(
          "on rank {} a backward pass goes through a batch of this rank and through one that it repeats in join(), "
          "and uses a result of the latter that forward() did not return as a tensor or in a container of "
          "tensors, so it cannot be excluded. Return it, or run a separate backward pass for each batch",
          rank));
}

Error unweighted_gradient_error(int rank, const std::string& parameter) {
  return backward_error(
      rank,
      fmt::format("the gradient of {} on rank {} was left by a backward pass outside DistributedDataParallel, so its "
                  "weight is unknown, and weighted averages need it; call zero_grad() before the next "
                  "backward pass through the wrapper",
                  parameter, rank));
}

Error mixed_gradient_error(int rank, const std::string& parameter) {
  return backward_error(
      rank,
      fmt::format(
          "the gradient of {} on rank {} holds an average plus gradients that this rank added to it before join(). A "
          "division by the active ranks cannot separate them; call zero_grad() after the average, or before join()",
          parameter, rank));
}

Error misplaced_event_error(int rank, std::string_view event, std::string_view state) {
  return backward_error(
      rank,
      fmt::format(
          "on rank {} DistributedDataParallel got the event '{}' in the state '{}'. A communication hook must not "
          "call the model or run its backward pass, and only one thread may use a wrapper at a time",
          rank, event, state));
}

Error options_error(const std::string& what) {
  return Error(ErrorKind::invalid_argument, "DistributedDataParallel: " + what);
}

Error different_values_error(int rank, const std::string& parameter, const std::vector<int>& ranks,
                             std::uint64_t backwards) {
  return Error(
      ErrorKind::desync,
      fmt::format("after {} backward passes through ddp(...) the parameters differ between ranks. First: {}, where "
                  "rank 0 has other values than rank {}. Compute the loss from ddp(x): model->forward(x) "
                  "averages nothing. Every rank must apply the same optimizer with the same settings to the "
                  "same parameters, and change them in no other way, as Embedding with max_norm does in its "
                  "forward pass. If they are meant to differ for a while, as in post-local SGD, set "
                  "compare_parameters_every to 0",
                  backwards, parameter, fmt::join(ranks, ", ")),
      {.rank = rank, .operation = "comparing parameters"});
}

Error unsupported_gradient_error(int rank, const std::string& parameter, const std::string& what) {
  return backward_error(
      rank, fmt::format("the gradient of {} on rank {} {}, which cannot be reduced", parameter, rank, what));
}

Error lone_forward_error(const Error& error) {
  if (error.kind() != ErrorKind::desync && error.kind() != ErrorKind::timeout) return error;
  return Error(error.kind(),
               fmt::format("{}. If only this rank called its DistributedDataParallel, for example to evaluate, call "
                           "its module() instead, which does not communicate",
                           error.what()),
               error.detail());
}

Error nothing_to_train_error() {
  return options_error(
      "no parameter of the module requires a gradient, so there is nothing to synchronise; use the module itself");
}

Error renormalised_parameter_error(const std::string& parameter) {
  return options_error("the embedding of " + parameter +
                       " has max_norm, so each rank's forward would rescale the rows that this rank reads, and the "
                       "ranks' parameters would drift apart. Leave max_norm unset and rescale all rows on all ranks "
                       "after each step of the optimizer: at::NoGradGuard no_grad; "
                       "weight.copy_(at::renorm(weight, 2, 0, max_norm)). If ranks may differ, set "
                       "compare_parameters_every to 0");
}

Error wrapped_twice_error(const std::string& parameter) {
  return options_error("parameter " + parameter +
                       " is wrapped already; its gradient would be averaged twice. Wrap a module once");
}

Error different_models_error(int rank, const std::string& kind, const std::string& on_rank_0,
                             const std::string& on_rank) {
  return Error(ErrorKind::invalid_argument,
               fmt::format("DistributedDataParallel: the model of rank {0} differs from that of rank 0. First "
                           "difference, {1}: rank 0 has {2}, rank {0} has {3}. Build the same model on all ranks (same "
                           "arguments, same order)",
                           rank, kind, on_rank_0, on_rank),
               {.rank = rank, .operation = "DistributedDataParallel"});
}

}  // namespace lockstep::internal
