// The texts of DDP's errors, kept out of its control flow. Each says which rank and parameter, why, and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
class ProcessGroup;
}  // namespace lockstep

namespace lockstep::internal {

// Ends the group, so that other ranks do not wait for this one and get the same text.
[[noreturn]] void throw_on_all_ranks(const ProcessGroup& group, const Error& error);

// Some parameters got no gradient in a backward in which others did.
Error no_gradient_error(int rank, const std::vector<std::string>& parameters);
// A gradient came for a parameter after its reduction had begun.
Error late_gradient_error(int rank, const std::string& parameter, bool thought_unused);
// With static_graph: a parameter got another number of gradients than in the first iteration.
Error graph_changed_error(int rank, const std::string& parameter, int gradients, int in_first);
Error unsupported_gradient_error(int rank, const std::string& parameter, const std::string& what);
// `where`: (rank, parameter), the first of each rank that has one.
Error non_finite_error(int rank, const std::vector<std::pair<int, std::string>>& where);
// The average of finite gradients is not.
Error overflow_error(int rank, const std::string& parameter);
Error nothing_to_train_error();
// The error of a forward's own communication, with advice if other ranks make other calls, or none.
Error lone_forward_error(const Error& error);
// An embedding with max_norm changes this parameter in its forward.
Error renormalised_parameter_error(const std::string& parameter);
Error wrapped_twice_error(const std::string& parameter);
// The last backward gave parameters gradients without going through a forward of the wrapper that waited for one.
Error stray_gradients_error(int rank);
// The first backwards all gave parameters gradients without going through a forward of the wrapper. A warning.
std::string_view only_stray_backwards_text();
// Since it was wrapped, a parameter was given another type or device.
Error replaced_parameter_error(int rank, const std::string& parameter);
// Since the module was wrapped, a parameter was added or replaced.
Error foreign_parameter_error(int rank, const std::string& parameter);
// Since it was wrapped, a parameter was given another shape, as by set_data().
Error resized_parameter_error(int rank, const std::string& parameter, const std::string& before,
                              const std::string& now);
// Since it was wrapped, requires_grad of a parameter was set.
Error unfrozen_parameter_error(int rank, const std::string& parameter);
// With mixed precision, the `inputs` of a backward name the parameters that get gradients.
Error chosen_inputs_error(int rank, const std::string& parameter);
// In lockstep mode, a backward goes through a forward that was made outside of for_each_shard().
Error backward_outside_error();
// A backward goes through a forward of a wrapper that is gone, and that averaged with others.
Error destroyed_wrapper_error();
// In join(), a backward goes through a batch of the rank's own and through a repeated one, whose outputs are not seen.
Error mixed_join_error(int rank);
// A gradient that a backward outside the wrapper left has no weight.
Error unweighted_gradient_error(int rank, const std::string& parameter);
// In join(), a gradient is an average to which this rank has added before, without weights.
Error mixed_gradient_error(int rank, const std::string& parameter);
// The program calls DDP in the wrong state.
Error misplaced_event_error(int rank, std::string_view event, std::string_view state);
// Options contradict each other or the module. what: the text after the class's name.
Error options_error(const std::string& what);
// The model of `rank` differs from rank 0's; each side as "name shape dtype", or "nothing" where one has fewer.
Error different_models_error(int rank, const std::string& kind, const std::string& on_rank_0,
                             const std::string& on_rank);
// Values that were equal now differ; `ranks` are those that differ from rank 0.
Error different_values_error(int rank, const std::string& parameter, const std::vector<int>& ranks,
                             std::uint64_t backwards);

}  // namespace lockstep::internal
