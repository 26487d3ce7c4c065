// Makes the batch norm of an existing model synchronised, however the model is written. model -> convert -> DDP.
//
//   ResNet18 model(10);
//   lockstep::convert_sync_batchnorm(model, world);  // 20 layers
//   lockstep::DistributedDataParallel ddp(model, world);
//
// A libtorch model calls its layers through members of fixed types, so replacing a layer in the module tree would
// change the printed and saved model, but not the computation. Therefore modules remain as they are, and their running
// mean is tagged. The batch norm operator (aten::batch_norm), which every torch::nn::BatchNorm ends in, looks for the
// tag: a tagged module in training is computed as SyncBatchNorm would (see sync_batch_norm.h), everything else as
// before.
//
// So names, order, parameters, buffers, options and the training flag are untouched. Checks of torch's module still
// apply: it refuses one value a channel on one rank, while SyncBatchNorm needs two on all ranks together. A clone() of
// a converted module is not converted.
#pragma once

#include "lockstep/comm/group/process_group.h"

namespace torch::nn {
class Module;
template <class Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace lockstep {

// Converts every BatchNorm1d, 2d and 3d at any depth, the module itself included, and returns how many there are. Those
// that were converted before change to this group. Sends nothing; all ranks do the same. Error{invalid_argument} if the
// module is wrapped in a DistributedDataParallel already, and then nothing is converted.
int convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group);

template <class Contained>
int convert_sync_batchnorm(const torch::nn::ModuleHolder<Contained>& module, const ProcessGroup& group) {
  return convert_sync_batchnorm(*module.ptr(), group);
}

// Whether this module itself, not a submodule, is synchronised: converted, a SyncBatchNorm, or otherwise tagged.
bool is_sync_batchnorm(const torch::nn::Module& module);

}  // namespace lockstep
