// What the other ranks are told when one leaves with an error. error -> last word. Pure.
#pragma once

#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

// An error about another rank as it is, any other as that of `rank`, which is called `who`. What its arguments were
// keeps its kind; the rest is Error{aborted}.
Error error_for_peers(std::string_view who, int rank, const Error& error);

}  // namespace lockstep
