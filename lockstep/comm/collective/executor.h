// An Executor moves the data of one collective after the other over the streams to all peers: it sets them up, and
// computes as bytes come. Links -> Executor -> PeerStream. One thread at a time; never blocks, and sends nothing
// itself.
#pragma once

#include "lockstep/base/bytes.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/peer_stream.h"
#include "lockstep/comm/collective/signature.h"

namespace lockstep::internal {

class Executor {
 public:
  virtual ~Executor() = default;

  // Sets up the streams, which are clear. `collective` stays until the next begin().
  virtual void begin(const Collective& collective, const Signature& signature) = 0;
  // Computes what can be computed of what has come; whether there was anything. has_compared: whether the signatures of
  // all peers that are expected have come, and agree; before, no output is written.
  virtual bool advance(bool has_compared) = 0;
  // Nothing is left to be computed.
  virtual bool is_done() const = 0;
  // The next bytes of the range that a stream sends now, as far as they are ready. REQUIRES: !stream.send.is_done().
  virtual ByteSpan next_of_range(const PeerStream& stream) const = 0;
};

}  // namespace lockstep::internal
