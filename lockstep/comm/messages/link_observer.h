// A MessageLink reports the outcome of operations to its LinkObserver. MessageLink -> LinkObserver.
// Called on the thread that moves the link's bytes.
#pragma once

#include <exception>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/messages/operation.h"

namespace lockstep::internal {

class LinkObserver {
 public:
  virtual ~LinkObserver() = default;
  // Ends an operation; `error` is null on success.
  virtual void finish(const OperationPtr& operation, std::exception_ptr error) = 0;
  // Ends an operation with an error that says which one failed, and why.
  virtual void fail(const OperationPtr& operation, const Error& reason) = 0;
  // A receive whose message was cancelled is to be matched anew.
  virtual void match_receive(const OperationPtr& receive) = 0;
  // A peer's question for a heartbeat, and its answer to one; false if that is malformed.
  virtual Bytes answer_heartbeat() = 0;
  virtual bool take_heartbeat(int peer, ByteView answer) = 0;
};

}  // namespace lockstep::internal
