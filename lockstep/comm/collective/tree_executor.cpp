#include "lockstep/comm/collective/tree_executor.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/collective/byte_range.h"
#include "lockstep/comm/collective/reduce.h"
#include "lockstep/comm/collective/segment_cursor.h"

namespace lockstep::internal {

TreeExecutor::TreeExecutor(int rank, std::span<PeerStream> streams, const Topology& topology)
    : rank_(rank), streams_(streams), topology_(topology) {
  rows_.resize(streams.size());
}

void TreeExecutor::begin(const Collective& collective, const Signature& signature) {
  collective_ = &collective;
  phase_ = Phase::gathering;
  joined_ = 0;
  plan_tree(collective, rank_, topology_, plan_);
  message_.resize(sizeof signature + (is_leader() ? plan_.bundle_bytes : plan_.row_bytes));
  std::memcpy(message_.data(), &signature, sizeof signature);
  gathered_ = sizeof signature + plan_.row_bytes;
  const bool is_in_place = traits_of(collective.kind).is_in_place();
  gather_bytes(is_in_place ? collective.output : collective.input, 0, message_.data() + sizeof signature,
               std::min(plan_.row_bytes, data_bytes(collective)));
  answer_.resize(sizeof signature + plan_.row_bytes);
  std::memcpy(answer_.data(), &signature, sizeof signature);
  for (const auto* messages : {&plan_.send, &plan_.answers}) {
    for (const TreeMessage& each : *messages) stream(each.peer).head_bytes = sizeof signature + each.bytes;
  }
  for (const TreeMessage& each : plan_.receive) {
    stream(each.peer).is_expected = true;
    stream(each.peer).expect_row(each.bytes, each.bytes);
  }
  offer_messages();
}

void TreeExecutor::offer_messages() {
  for (const TreeMessage& each : plan_.send) {
    PeerStream& to = stream(each.peer);
    if (to.head_bytes <= gathered_) to.head = ByteSpan(message_).first(to.head_bytes);
  }
}

bool TreeExecutor::advance(bool has_compared) {
  if (phase_ == Phase::done) return false;
  const bool moved = join_messages();
  if (joined_ < plan_.receive.size() || !has_compared) return moved;
  conclude();
  phase_ = Phase::done;
  return true;
}

bool TreeExecutor::join_messages() {
  const std::size_t before = joined_;
  for (; joined_ < plan_.receive.size(); ++joined_) {
    const PeerStream& next = stream(plan_.receive[joined_].peer);
    if (!next.is_received()) break;
    if (!is_leader()) continue;
    std::memcpy(message_.data() + gathered_, next.row(), next.row_bytes);
    gathered_ += next.row_bytes;
  }
  if (joined_ == before) return false;
  offer_messages();
  return true;
}

void TreeExecutor::conclude() {
  const Collective& collective = *collective_;
  const OpTraits& op = traits_of(collective.kind);
  const std::size_t bytes = data_bytes(collective);
  const bool is_wanted = !op.has_root() || rank_ == collective.root;
  if (op.reduces) {
    is_leader() ? reduce() : is_wanted ? scatter_bytes(bundle(), collective.output, 0, bytes) : void();
  } else if (op.moves_pieces()) {
    for (int rank = 0; rank < topology_.size(); ++rank) {
      scatter_bytes(row(rank), collective.output, bytes * static_cast<std::size_t>(rank), bytes);
    }
  } else if (op.moves_data() && !is_wanted) {  // a broadcast
    scatter_bytes(row(collective.root), collective.output, 0, bytes);
  }
  for (const TreeMessage& each : plan_.answers) {
    stream(each.peer).head = ByteSpan(op.reduces ? answer_ : message_).first(sizeof(Signature) + each.bytes);
  }
}

// On the leader of a node that the result goes to.
void TreeExecutor::reduce() {
  const Collective& collective = *collective_;
  if (collective.kind == OpKind::reduce && topology_.node(collective.root) != topology_.node(rank_)) return;
  std::size_t done = 0;
  for (SegmentCursor output(collective.output); output.run() != 0;) {
    const std::size_t run = output.run();
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) rows_[rank] = row(static_cast<int>(rank)) + done;
    std::byte* const to = output.data();
    reduce_all(collective, {&to, 1}, rows_, run / element_size(collective.dtype));
    output.advance(run);
    done += run;
  }
  gather_bytes(collective.output, 0, answer_.data() + sizeof(Signature), done);
}

const std::byte* TreeExecutor::bundle() const {
  if (is_leader()) return message_.data() + sizeof(Signature);
  return streams_[static_cast<std::size_t>(plan_.leader)].row();
}

}  // namespace lockstep::internal
