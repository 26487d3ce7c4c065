#include "lockstep/ddp/diagnostics.h"

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

Error no_gradient_error(int rank, const std::vector<std::string>& parameters) {
  std::string names;
  for (std::size_t i = 0; i < parameters.size() && i < kMostNames; ++i) names += (i == 0 ? "" : ", ") + parameters[i];
  if (parameters.size() > kMostNames) names += ", and " + std::to_string(parameters.size() - kMostNames) + " more";
  return Error(
      ErrorKind::invalid_argument,
      std::to_string(parameters.size()) + " parameters got no gradient in this backward on rank " +
          std::to_string(rank) + ": " + names +
          ". Every parameter that requires a gradient must take part in the loss on every rank; use them all, or "
          "freeze them with requires_grad_(false) before the model is wrapped",
      detail_of(rank, "backward"));
}

Error unsupported_gradient_error(int rank, const std::string& parameter, const std::string& what) {
  return Error(
      ErrorKind::invalid_argument,
      "the gradient of " + parameter + " on rank " + std::to_string(rank) + " " + what + ", which cannot be reduced",
      detail_of(rank, "backward"));
}

Error nothing_to_train_error() {
  return Error(ErrorKind::invalid_argument,
               "DistributedDataParallel: no parameter of the module requires a gradient, so there is nothing to "
               "synchronise; use the "
               "module itself");
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
