#include "lockstep/train/parallel/data_parallel.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

using namespace internal;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The state of one forward for its backward: for each replica a separate graph, from its parameters and its part of the
// input to its part of the output.
struct Pass final : torch::CustomClassHolder {
  Pass(std::shared_ptr<ReplicaPool> from, std::size_t count, std::int64_t dimension)
      : pool(std::move(from)), replicas(pool->take(count)), inputs(count), outputs(count), dim(dimension) {}
  ~Pass() override {
    outputs.clear();  // their graph must be gone before a replica is used again
    pool->give_back(std::move(replicas));
  }

  std::shared_ptr<ReplicaPool> pool;
  std::vector<ModuleReplica> replicas;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::int64_t dim;
};

[[noreturn]] void rethrow(const std::exception_ptr& error, std::size_t replica, std::size_t count, const char* where) {
  const std::string text = "DataParallel: " + std::string(where) + " of replica " + std::to_string(replica) + " of " +
                           std::to_string(count) + " failed: ";
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& thrown) {
    std::throw_with_nested(Error(ErrorKind::invalid_argument, text + thrown.what_without_backtrace()));
  } catch (const std::exception& thrown) {
    std::throw_with_nested(Error(ErrorKind::invalid_argument, text + thrown.what()));
  }
}

// Shares torch's threads out among the threads that compute replicas: each gets some for the operations in it.
class ThreadShares {
 public:
  explicit ThreadShares(std::size_t parts)
      : threads_(at::get_num_threads()), workers_(std::clamp(static_cast<int>(parts), 1, threads_)) {}
  // The setting belongs to the calling thread, and new threads begin with it.
  ~ThreadShares() {
    if (workers_ > 1) at::set_num_threads(threads_);
  }
  ThreadShares(const ThreadShares&) = delete;
  ThreadShares& operator=(const ThreadShares&) = delete;

  int workers() const { return workers_; }
  void take_one() const {
    if (workers_ > 1) at::set_num_threads(threads_ / workers_);
  }

 private:
  const int threads_;
  const int workers_;
};

// Calls work(i) for each replica, in threads, of which the caller's is one; throws the first replica's error.
template <class Work>
void in_threads(std::size_t count, const char* where, const Work& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next{0};
  const ThreadShares shares(count);
  const at::ThreadLocalState state;  // whether gradients are recorded, for one
  const auto work_on = [&] {
    const at::ThreadLocalStateGuard guard(state);
    shares.take_one();
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int worker = 1; worker < shares.workers(); ++worker) threads.emplace_back(work_on);
    work_on();
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (errors[i]) rethrow(errors[i], i, count, where);
  }
}

std::vector<at::Tensor> sum_of_replicas(const std::vector<variable_list>& gradients) {
  std::vector<at::Tensor> sums(gradients.front().size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    int terms = 0;
    for (const auto& of_replica : gradients) {
      const at::Tensor& term = of_replica[i];
      if (!term.defined()) continue;
      ++terms;
      // Results of a backward may be used elsewhere; only tensors that were made here are changed in place.
      if (terms == 1) sums[i] = term;
      if (terms == 2) sums[i] = sums[i].add(term);
      if (terms > 2) sums[i].add_(term);
    }
  }
  return sums;
}

// Joins the replicas' graphs to the caller's: the gathered output is a function of the whole input and of the module's
// own parameters.
struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Pass>& pass, const at::Tensor&,
                            at::TensorList parameters) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    // Not used in backward, but compared: memory that replicas share must not have changed until then.
    context->save_for_backward(parameters.vec());
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& output : pass->outputs) outputs.push_back(output.detach());
    return at::cat(outputs, pass->dim);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error(ErrorKind::invalid_argument,
                  "DataParallel: second derivatives are not supported (create_graph); use the module itself");
    }
    const auto parameters = context->get_saved_variables();
    const auto pass = c10::static_intrusive_pointer_cast<Pass>(context->saved_data.at("pass").toCapsule());
    const std::size_t count = pass->replicas.size();
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    std::vector<std::int64_t> lengths;
    for (const at::Tensor& output : pass->outputs) lengths.push_back(output.size(pass->dim));
    const auto parts = gradients[0].split_with_sizes(lengths, pass->dim);

    std::vector<at::Tensor> of_inputs(count);
    std::vector<variable_list> of_parameters(count, variable_list(parameters.size()));
    in_threads(count, "backward", [&](std::size_t i) {
      if (!pass->outputs[i].requires_grad()) return;
      variable_list wanted;
      std::vector<at::Tensor*> results;
      const auto want = [&](const at::Tensor& leaf, at::Tensor& result) {
        if (!leaf.requires_grad()) return;
        wanted.push_back(leaf);
        results.push_back(&result);
      };
      want(pass->inputs[i], of_inputs[i]);
      const auto own = pass->replicas[i].module->parameters();
      for (std::size_t j = 0; j < own.size(); ++j) want(own[j], of_parameters[i][j]);
      auto found = torch::autograd::grad({pass->outputs[i]}, wanted, {parts[i]}, keep_graph, /*create_graph=*/false,
                                         /*allow_unused=*/true);
      for (std::size_t j = 0; j < found.size(); ++j) *results[j] = std::move(found[j]);
    });

    variable_list all{at::Tensor()};  // for the pass itself
    if (context->needs_input_grad(0)) {
      for (std::size_t i = 0; i < count; ++i) {
        if (!of_inputs[i].defined()) of_inputs[i] = at::zeros_like(pass->inputs[i]);
      }
      all.push_back(at::cat(of_inputs, pass->dim));
    } else {
      all.emplace_back();
    }
    for (at::Tensor& sum : sum_of_replicas(of_parameters)) all.push_back(std::move(sum));
    return all;
  }
};

void add_to(DataParallelStats& stats, const Pass& pass, const at::Tensor& output) {
  const std::size_t count = pass.replicas.size();
  ++stats.forwards;
  for (const at::Tensor& buffer : pass.pool->module().buffers())
    stats.replicated_bytes += (count - 1) * buffer.nbytes();
  stats.gathered_bytes += output.nbytes();
  if (!output.requires_grad()) return;
  for (const at::Tensor& parameter : pass.pool->module().parameters()) {
    if (parameter.requires_grad()) stats.added_bytes += count * parameter.nbytes();
  }
}

}  // namespace

at::Tensor data_parallel_forward(const std::shared_ptr<ReplicaPool>& pool, const at::Tensor& input,
                                 const DataParallelOptions& options, DataParallelStats& stats) {
  if (options.replicas < 1) {
    throw Error(ErrorKind::invalid_argument,
                "DataParallel: replicas is " + std::to_string(options.replicas) + "; at least one is needed");
  }
  if (options.dim < 0 || options.dim >= input.dim()) {
    throw Error(ErrorKind::invalid_argument, "DataParallel: a batch of shape " + c10::str(input.sizes()) +
                                                 " cannot be cut along dimension " + std::to_string(options.dim));
  }
  const auto parts = input.size(options.dim) == 0 ? std::vector<at::Tensor>{input}
                                                  : input.detach().chunk(options.replicas, options.dim);
  const auto pass = c10::make_intrusive<Pass>(pool, parts.size(), options.dim);
  in_threads(parts.size(), "forward", [&](std::size_t i) {
    at::Tensor& part = pass->inputs[i];
    part = parts[i].detach().set_requires_grad(input.requires_grad());
    const at::Tensor output = pass->replicas[i].forward(part);
    pass->outputs[i] = output.dim() == 0 ? output.unsqueeze(0) : output;
  });
  const at::Tensor output = Gather::apply(pass, input, at::TensorList(pool->module().parameters()));
  add_to(stats, *pass, output);
  return output;
}

}  // namespace lockstep
