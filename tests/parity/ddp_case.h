// How a case of reference.py is trained: its metadata, read.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/train/ddp/options.h"

namespace parity {

struct DdpCase {
  std::string model;
  lockstep::DdpOptions options;
  std::string hook;  // its name there; empty: none
  std::int64_t accumulate = 1;
  double momentum = 0;
  double tolerance = 0;  // of parity::difference()
};

// Error{invalid_argument} for an option or a hook that nobody knows here.
DdpCase read_case(const std::map<std::string, std::string>& metadata);

}  // namespace parity
