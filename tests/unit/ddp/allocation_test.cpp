// Once it is warm, DistributedDataParallel takes no memory from the heap: a step with it takes as much as the same step
// without. That one has hooks which do nothing in the places where DDP must have some, since torch takes memory for
// each: a list of inputs for each parameter with a hook, the hook at the model's output, the list of callbacks. And its
// tensors come from the same memory.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <barrier>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group/arena_allocator.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/allocation_count.h"
#include "tests/support/quiet_groups.h"
#include "tests/unit/ddp/models.h"

#include <doctest/doctest.h>  // behind torch's headers, whose CHECK is another one

namespace allocation_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using torch::autograd::variable_list;

namespace {

constexpr int kRanks = 2;
constexpr int kWarmUp = 3 * arena::kInFlight;
constexpr int counted_steps(Over transport) { return transport == Over::arena ? 20 : 100; }

struct EmptyPostHook final : torch::autograd::FunctionPostHook {
  variable_list operator()(const variable_list& outputs, const variable_list&) override { return outputs; }
};

struct EmptyPreHook final : torch::autograd::FunctionPreHook {
  variable_list operator()(const variable_list& gradients) override {
    torch::autograd::Engine::get_default_engine().queue_callback([] {});
    return gradients;
  }
};

class Plain {
 public:
  Plain(Net model, const ProcessGroup& group, const DdpOptions&) : model_(std::move(model)), heap_(group.heap()) {
    for (const at::Tensor& parameter : model_->parameters()) {
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
      accumulators_.back()->add_post_hook(std::make_unique<EmptyPostHook>());
    }
  }
  void step(const at::Tensor& x) {
    const ArenaScope scope(heap_);
    const at::Tensor y = model_->forward(x);
    y.grad_fn()->add_pre_hook(std::make_unique<EmptyPreHook>());
    y.sum().backward();
  }

 private:
  Net model_;
  std::shared_ptr<ArenaHeap> heap_;
  std::vector<decltype(torch::autograd::impl::grad_accumulator(at::Tensor()))> accumulators_;
};

class Wrapped {
 public:
  Wrapped(const Net& model, const ProcessGroup& group, const DdpOptions& options)
      : ddp_(model, group, uncompared(options)) {}
  void step(const at::Tensor& x) { ddp_(x).sum().backward(); }

 private:
  static DdpOptions uncompared(DdpOptions options) {
    options.compare_parameters_every = 0;  // every so many steps it takes memory
    return options;
  }

  DistributedDataParallel<Net> ddp_;
};

// How many collectives are in flight at once depends on chance, and their memory grows with it. Here all of one rank's
// are while the other one has not come.
void fill_queue(const ProcessGroup& group, std::barrier<>& together) {
  const at::Tensor value = wave({8}, 0);
  for (const int late : {0, 1}) {
    std::vector<Work> works;
    if (group.rank() == late) together.arrive_and_wait();
    for (int i = 0; i < 20; ++i) works.push_back(group.all_reduce_async(value));
    if (group.rank() != late) together.arrive_and_wait();
    for (const Work& work : works) work.wait();
  }
}

// A process's first backward starts a thread for each device that torch knows: those of a GPU build, or the fake ones
// that this program links. Each takes a little memory of its own, once, whenever it comes to run, which may be while
// steps are counted: torch waits until they have started, not until they are ready. This waits until they have ended;
// backwards on the CPU need none of them.
void end_device_threads() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.initialize_device_threads_pool();
  engine.stop();
}

// Of all ranks together.
template <class Model>
std::uint64_t allocations_of_steps(Over transport, const DdpOptions& options, int width) {
  at::set_num_threads(1);
  std::barrier together(kRanks);
  std::uint64_t before = 0, after = 0;
  run_quiet_group(kRanks, transport, [&](const ProcessGroup& group) {
    Net net(width);
    Model model(net, group, options);
    const at::Tensor x = wave({3, 20}, group.rank());
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        net->zero_grad();
        model.step(x);
      }
    };
    if (group.rank() == 0) end_device_threads();  // the other rank waits in fill_queue()
    fill_queue(group, together);
    steps(kWarmUp);
    together.arrive_and_wait();
    if (group.rank() == 0) before = allocations();
    together.arrive_and_wait();
    steps(counted_steps(transport));
    together.arrive_and_wait();
    if (group.rank() == 0) after = allocations();
    together.arrive_and_wait();
  });
  return after - before;
}

}  // namespace

// feature: E-21, G-02
TEST_CASE("a step of DDP takes as much from the heap as one without it") {
  const std::pair<std::string, DdpOptions> cases[] = {
      {"as it is", {}},
      {"static graph", {.static_graph = true}},
      {"every parameter by itself", {.bucketing = Bucketing::off}},
      {"looks for NaN", {.non_finite = NonFinite::fail}},
  };
  for (const Over transport : kTransports) {
    for (const int width : {8, 256}) {  // all in buckets, and large ones in shared memory
      const std::uint64_t plain = allocations_of_steps<Plain>(transport, {}, width);
      CHECK(plain > 0);
      for (const auto& [name, options] : cases) {
        CAPTURE(static_cast<int>(transport));
        CAPTURE(width);
        CAPTURE(name);
        const std::uint64_t wrapped = allocations_of_steps<Wrapped>(transport, options, width);
        if (transport == Over::arena) CHECK(wrapped == plain);
        // With a second thread it depends on chance which of them does something for the first time, and when. Many
        // steps tell that from what each step takes.
        if (transport == Over::links) CHECK(wrapped < plain + counted_steps(transport));
      }
    }
  }
}

}  // namespace allocation_test
