// One CarrierCall as a call of one of libtorch's own process groups. Carriers over c10d -> here -> c10d.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/adapters/carrier.h"

namespace lockstep::internal {

// Starts the operation; it does not block. Throws what libtorch throws.
c10::intrusive_ptr<c10d::Work> start_call(c10d::Backend& backend, const CarrierCall& call, at::Device device,
                                          std::chrono::milliseconds timeout);

// The time until the deadline as libtorch takes it: at least 1 ms, since 0 means no limit, and at most a year.
std::chrono::milliseconds torch_timeout(Deadline deadline);

// Calls libtorch. What it throws becomes an Error: `translate` makes it from the text.
template <class Call>
auto with_translated_errors(Error (*translate)(const std::string& text), Call&& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw translate(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw translate(error.what());
  }
}

// What libtorch's groups can reduce.
bool torch_reduces(ReduceOp op, DType dtype);

}  // namespace lockstep::internal
