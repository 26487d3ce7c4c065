// Leaves inference mode for a scope: tensors that are made there, and live on, could not be changed outside of it.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <optional>

namespace lockstep::internal {

class NormalMode {
 public:
  NormalMode() {
    if (!c10::InferenceMode::is_enabled()) return;
    normal_mode_.emplace(false);
    no_grad_.emplace();  // as it was there
  }
  NormalMode(const NormalMode&) = delete;
  NormalMode& operator=(const NormalMode&) = delete;

 private:
  std::optional<c10::InferenceMode> normal_mode_;
  std::optional<at::NoGradGuard> no_grad_;
};

}  // namespace lockstep::internal
