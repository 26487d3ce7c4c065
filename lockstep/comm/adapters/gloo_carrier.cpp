// The carrier over Gloo: libtorch's own process group of that name, in host memory, over TCP. Where libtorch comes
// without Gloo's headers, "lockstep/comm/adapters/gloo_declarations.h" stands for those that the next one includes.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <csignal>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/comm/adapters/backend_table.h"
#include "lockstep/comm/adapters/torch_calls.h"
#include "lockstep/comm/adapters/torch_store.h"
#include "lockstep/comm/collective/reduce.h"
#include "lockstep/comm/store/prefix_store.h"

namespace lockstep::internal {
namespace {

// Gives access to the connections: closing them is the only way to end an operation before its timeout.
class GlooGroup final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

// Gloo tells its failures apart by their texts only.
Error translate(const std::string& text) {
  const bool in_time = text.find("imed out") == std::string::npos && text.find("imeout") == std::string::npos;
  return Error(in_time ? ErrorKind::peer_lost : ErrorKind::timeout, "Gloo: " + text);
}

// Gloo writes to sockets that a peer may have closed, which by default ends the process. Its threads inherit the block.
class BrokenPipes {
 public:
  ~BrokenPipes() { block_.discard(SIGPIPE); }

 private:
  const SignalBlock block_{{SIGPIPE}};
};

class GlooCarrier final : public Carrier {
 public:
  GlooCarrier(const CarrierSite& site, Deadline deadline) : size_(site.size) {
    const auto timeout = torch_timeout(deadline);
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(site.address));
    options->threads = 1;  // one collective at a time
    auto store =
        c10::make_intrusive<TorchStoreView>(std::make_shared<PrefixStore>(site.store, "gloo/" + site.group), timeout);
    group_ = c10::make_intrusive<GlooGroup>(store, site.rank, site.size, options);
  }

  std::string_view name() const override { return "gloo"; }

  CarrierBuffers buffers(std::size_t input_bytes, std::size_t output_bytes) override {
    if (input_.size() < input_bytes) input_.resize(input_bytes);
    if (output_.size() < output_bytes) output_.resize(output_bytes);
    return {input_.data(), output_.data()};
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }

  void run(const CarrierCall& call, Deadline deadline) override {
    const BrokenPipes broken_pipes;
    CarrierCall made = call;
    if (call.reduce == ReduceOp::avg) made.reduce = ReduceOp::sum;
    with_translated_errors(translate, [&] { start_call(*group_, made, at::kCPU, torch_timeout(deadline))->wait(); });
    if (call.reduce == ReduceOp::avg) {
      const std::byte* sum = call.output;
      reduce_rows({&call.output, 1}, {&sum, 1}, call.count, call.dtype, ReduceOp::avg, size_);
    }
  }

  void interrupt() noexcept override {
    const BrokenPipes broken_pipes;
    try {
      group_->close();
    } catch (const std::exception&) {  // then its timeout ends it
    }
  }

 private:
  const int size_;
  std::vector<std::byte> input_, output_;  // outlive the group, whose threads use them
  c10::intrusive_ptr<GlooGroup> group_;
};

std::unique_ptr<Carrier> make_gloo_carrier(const CarrierSite& site, Deadline deadline) {
  const BrokenPipes broken_pipes;
  try {
    return with_translated_errors(translate, [&] { return std::make_unique<GlooCarrier>(site, deadline); });
  } catch (const Error& error) {
    if (!deadline.expired() || error.kind() == ErrorKind::timeout) throw;
    throw Error(ErrorKind::timeout, std::string("the Gloo rendezvous timed out: ") + error.what());
  }
}

}  // namespace

BackendEntry gloo_backend() { return {.name = "gloo", .make = make_gloo_carrier, .reductions = torch_reduces}; }

}  // namespace lockstep::internal
