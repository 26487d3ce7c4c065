#include "lockstep/ddp/checks/ddp_errors.h"

#include "lockstep/group/process_group.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostNames = 10;

ErrorDetail detail_of(int rank, const char* operation) {
  ErrorDetail detail;
  detail.rank = rank;
  detail.operation = operation;
  return detail;
}

}  // namespace

void throw_on_all_ranks(const ProcessGroup& group, const Error& error) {
  group.abort(error.what());
  throw error;
}

Error no_gradient_error(int rank, const std::vector<std::string>& parameters) {
  std::string names;
  for (std::size_t i = 0; i < parameters.size() && i < kMostNames; ++i) names += (i == 0 ? "" : ", ") + parameters[i];
  if (parameters.size() > kMostNames) names += ", and " + std::to_string(parameters.size() - kMostNames) + " more";
  return Error(
      ErrorKind::invalid_argument,
      std::to_string(parameters.size()) + " parameters got no gradient in this backward on rank " +
          std::to_string(rank) + ": " + names +
          ". Every parameter that requires a gradient must take part in the loss on every rank; use them all, freeze "
          "them with requires_grad_(false) before the model is wrapped, or set find_unused_parameters",
      detail_of(rank, "backward"));
}

Error late_gradient_error(int rank, const std::string& parameter, bool thought_unused) {
  const std::string begin = "parameter " + parameter + " got " +
                            (thought_unused ? "a gradient although no output of the model depended on it"
                                            : std::string("several gradients in one backward")) +
                            ", the last one after its reduction had begun on rank " + std::to_string(rank);
  return Error(ErrorKind::invalid_argument,
               begin +
                   ". Parts of a graph that are recomputed in backward (checkpointing) do that; if the graph is the "
                   "same in every iteration, set static_graph",
               detail_of(rank, "backward"));
}

Error graph_changed_error(int rank, const std::string& parameter, int gradients, int in_first) {
  return Error(ErrorKind::invalid_argument,
               "static_graph: parameter " + parameter + " got " + std::to_string(gradients) +
                   " gradients in this backward on rank " + std::to_string(rank) + ", and " + std::to_string(in_first) +
                   " in the first one. Unset static_graph for a graph that changes, and set find_unused_parameters if "
                   "it leaves out parameters",
               detail_of(rank, "backward"));
}

Error non_finite_error(int rank, const std::vector<std::pair<int, std::string>>& where) {
  std::string text;
  for (const auto& [bad, parameter] : where) {
    text += (text.empty() ? "" : "; ") + ("rank " + std::to_string(bad)) + " in the gradient of " + parameter;
  }
  return Error(ErrorKind::corrupt_data,
               "NaN or Inf on " + text +
                   ". All gradients of this backward were dropped on all ranks, so that an optimizer's step changes "
                   "nothing",
               detail_of(rank, "backward"));
}

Error stray_gradients_error(int rank) {
  return Error(
      ErrorKind::invalid_argument,
      "on rank " + std::to_string(rank) +
          " a backward gave parameters gradients without going through the last forward of DistributedDataParallel, "
          "whose output is still kept, so they were not averaged. If the loss is to be trained on, compute it from "
          "what ddp(...) returns (add 0 * output.sum() if it needs nothing of it). If it is not, drop that output "
          "first, or "
          "compute it under NoGradGuard",
      detail_of(rank, "forward"));
}

Error replaced_parameter_error(int rank, const std::string& parameter) {
  return Error(ErrorKind::invalid_argument,
               "on rank " + std::to_string(rank) + " parameter " + parameter +
                   " was given another type or device after DistributedDataParallel had been made, so its gradients "
                   "would not be averaged. Convert the model first, then wrap it",
               detail_of(rank, "forward"));
}

Error chosen_inputs_error(int rank, const std::string& parameter) {
  return Error(ErrorKind::invalid_argument,
               "on rank " + std::to_string(rank) + " backward was called with `inputs`, among them parameter " +
                   parameter +
                   ", whose copy in the type of mixed precision is in the graph, so it would get no gradient. Call "
                   "backward without `inputs`, or set requires_grad of the others to false before the forward",
               detail_of(rank, "backward"));
}

Error unweighted_gradient_error(int rank, const std::string& parameter) {
  return Error(ErrorKind::invalid_argument,
               "the gradient of " + parameter + " on rank " + std::to_string(rank) +
                   " was left by a backward outside DistributedDataParallel. Gradients are weighted here, and its "
                   "weight is unknown; call zero_grad() before the next backward through the wrapper",
               detail_of(rank, "backward"));
}

Error misplaced_event_error(int rank, std::string_view event, std::string_view state) {
  return Error(ErrorKind::invalid_argument,
               "on rank " + std::to_string(rank) + " DistributedDataParallel met '" + std::string(event) +
                   "' while it was " + std::string(state) +
                   ". A communication hook must not call the model or run its backward, and only one thread may use a "
                   "wrapper at a time",
               detail_of(rank, "backward"));
}

Error options_error(const std::string& what) {
  return Error(ErrorKind::invalid_argument, "DistributedDataParallel: " + what);
}

Error different_values_error(int rank, const std::string& parameter, const std::vector<int>& ranks,
                             std::uint64_t backwards) {
  std::string list;
  for (const int other : ranks) list += (list.empty() ? "" : ", ") + std::to_string(other);
  return Error(ErrorKind::desync,
               "after " + std::to_string(backwards) + " backwards the parameters differ between ranks. First: " +
                   parameter + ", where rank 0 has other values than rank " + list +
                   ". Every rank must apply the same optimizer with the same settings to the same parameters, and "
                   "change them in no other way",
               detail_of(rank, "comparing parameters"));
}

Error unsupported_gradient_error(int rank, const std::string& parameter, const std::string& what) {
  return Error(
      ErrorKind::invalid_argument,
      "the gradient of " + parameter + " on rank " + std::to_string(rank) + " " + what + ", which cannot be reduced",
      detail_of(rank, "backward"));
}

Error lone_forward_error(const Error& error) {
  if (error.kind() != ErrorKind::desync && error.kind() != ErrorKind::timeout) return error;
  return Error(error.kind(),
               std::string(error.what()) +
                   ". If this rank alone called its DistributedDataParallel, as for an evaluation: call its module() "
                   "instead, which does not communicate",
               error.detail());
}

Error nothing_to_train_error() {
  return Error(ErrorKind::invalid_argument,
               "DistributedDataParallel: no parameter of the module requires a gradient, so there is nothing to "
               "synchronise; use the module itself");
}

Error wrapped_twice_error(const std::string& parameter) {
  return Error(ErrorKind::invalid_argument,
               "DistributedDataParallel: parameter " + parameter +
                   " is wrapped already; its gradient would be averaged twice. Wrap a module once");
}

Error different_models_error(int rank, const std::string& kind, const std::string& on_rank_0,
                             const std::string& on_rank) {
  return Error(ErrorKind::invalid_argument,
               "DistributedDataParallel: the model of rank " + std::to_string(rank) +
                   " differs from that of rank 0. First difference, " + kind + ": rank 0 has " + on_rank_0 + ", rank " +
                   std::to_string(rank) + " has " + on_rank +
                   ". Build the same model on all ranks (same arguments, same order)",
               detail_of(rank, "DistributedDataParallel"));
}

}  // namespace lockstep
