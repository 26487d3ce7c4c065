// The texts of DDP's errors, kept out of its control flow. Each says which rank and parameter, why, and what to do.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

// Some parameters got no gradient in a backward in which others did.
Error no_gradient_error(int rank, const std::vector<std::string>& parameters);
Error unsupported_gradient_error(int rank, const std::string& parameter, const std::string& what);
Error nothing_to_train_error();
Error wrapped_twice_error(const std::string& parameter);
// The model of `rank` differs from rank 0's; each side as "name shape dtype", or "nothing" where one has fewer.
Error different_models_error(int rank, const std::string& kind, const std::string& on_rank_0,
                             const std::string& on_rank);

}  // namespace lockstep
