// Everything a training program needs. Parts of it can be included by themselves; this header includes no
// torch/torch.h.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/random_state.h"
#include "lockstep/checkpoint/state_digest.h"
#include "lockstep/data/batch_size.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/fashion_mnist.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/shard_sampler.h"
#include "lockstep/ddp/average_gradients.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/group/composed.h"
#include "lockstep/group/objects.h"
#include "lockstep/group/world.h"
#include "lockstep/launch/spawn.h"
