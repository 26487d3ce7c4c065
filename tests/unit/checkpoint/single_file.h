// The single file, step-0000000400.safetensors, that an earlier version stored of a training.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/random_state.h"
#include "tests/unit/checkpoint/training.h"

namespace lockstep::testing {

using namespace internal;

// As the training of one rank was stored. The first versions wrote less metadata.
inline Checkpoint single_file(Training& training, bool is_of_first_version = false) {
  Checkpoint checkpoint;
  add_module(checkpoint, *training.model);
  add_optimizer(checkpoint, training.optimizer);
  add_random_state(checkpoint);
  const TrainingPosition& at = training.run.position;
  checkpoint.metadata.insert(
      {{"step", std::to_string(at.step)}, {"epoch", std::to_string(at.epoch)}, {"batch", std::to_string(at.batch)}});
  checkpoint.tensors["loss_so_far"] = at::tensor({at.loss_sum, static_cast<double>(at.samples)}, at::kDouble);
  if (is_of_first_version) return checkpoint;
  checkpoint.metadata.insert({{"ranks", "1"},
                              {"shards", "0"},
                              {"shards_seed", "0"},
                              {"shards_step", "0"},
                              {"threads", "0"},
                              {"arithmetic", ""},
                              {"choice.lr", "0.001"}});
  return checkpoint;
}

}  // namespace lockstep::testing
