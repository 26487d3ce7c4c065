// A mesh that counts what is sent over it. One thread, as its mesh; the count may be read by others.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "lockstep/comm/transport/mesh.h"

namespace lockstep::testing {

using namespace internal;

struct SentCount {
  std::atomic<int> times{0};
  std::atomic<std::size_t> bytes{0};
};

class CountingMesh final : public Mesh {
 public:
  // count: borrowed.
  CountingMesh(std::unique_ptr<Mesh> mesh, SentCount& count) : mesh_(std::move(mesh)), count_(count) {}
  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }
  std::string_view name() const override { return mesh_->name(); }
  std::size_t send_some(int peer, ByteSpan data) override {
    const std::size_t bytes = mesh_->send_some(peer, data);
    if (bytes != 0) ++count_.times;
    count_.bytes += bytes;
    return bytes;
  }
  std::size_t recv_some(int peer, MutableByteSpan data) override { return mesh_->recv_some(peer, data); }
  void wait(std::span<const Interest> interests, Deadline deadline) override { mesh_->wait(interests, deadline); }
  void wake() noexcept override { mesh_->wake(); }
  void announce(ByteView bytes) noexcept override { mesh_->announce(bytes); }
  std::optional<Announcement> take_announcement() override { return mesh_->take_announcement(); }
  void abort(const Error& error) noexcept override { mesh_->abort(error); }

 private:
  std::unique_ptr<Mesh> mesh_;
  SentCount& count_;
};

}  // namespace lockstep::testing
