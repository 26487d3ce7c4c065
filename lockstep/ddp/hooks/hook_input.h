// What the communication hooks have in common: which buckets they take, and what they call them. Pure.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/ddp/hooks/comm_hook.h"

namespace lockstep {

// What a call that averages it is called, beside the number of the backward: see bucket_call_name().
std::string name_of(const GradBucket& bucket, std::string_view part = {});

// Error{invalid_argument} naming hook, bucket and type unless the gradients are real numbers of 16, 32 or 64 bits.
void require_real(const GradBucket& bucket, std::string_view hook);

}  // namespace lockstep
