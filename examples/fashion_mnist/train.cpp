#include "examples/fashion_mnist/train.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>

#include "examples/fashion_mnist/article.h"
#include "examples/fashion_mnist/augmented.h"
#include "examples/fashion_mnist/options.h"
#include "examples/models/cnn.h"
#include "examples/models/mlp.h"
#include "examples/models/resnet18.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& y) {
  return at::cross_entropy_loss(logits, y.to(logits.device(), /*non_blocking=*/true));
}

at::Device device_of(const World& world) { return world.device().value_or(at::kCPU); }

std::array<double, 2> loss_and_accuracy(const at::Tensor& logits, const at::Tensor& y) {
  const at::Tensor right = logits.argmax(1).eq(y.to(logits.device()));
  return {loss_of(logits, y).item<double>(), right.to(at::kDouble).mean().item<double>()};
}

// The steps that are left of an epoch, unless --max-steps or a signal end it. In lockstep mode shards have a batch
// each.
template <class Ddp>
void train_epoch(Ddp& ddp, torch::optim::SGD& optimizer, TrainingRun& run, const Augmented& images,
                 const FashionMnist& test, const Options& o, const World& world) {
  const auto& at = run.position;
  const at::Device device = device_of(world);
  const int shards = o.lockstep ? o.shards : 0;  // 0: every rank has one batch a step
  const auto batch_size = BatchSize::global(o.batch_size);
  const std::size_t local = batch_size.local(o.lockstep ? shards : world.size());
  ShardSampler sampler(images.size(), world, {.shards = shards, .batch_size = local, .seed = o.seed});
  sampler.set_epoch(at.epoch);
  const auto batches =
      shard_loader(images, sampler, {.workers = o.workers, .first_batch = at.batch, .pin_memory = device.is_cuda()});
  const auto left = static_cast<std::int64_t>(sampler.steps()) - at.batch;
  const auto steps = o.max_steps == 0 ? left : std::min(left, o.max_steps - at.step);
  Progress progress(world, "epoch " + std::to_string(at.epoch + 1) + "/" + std::to_string(o.epochs), steps);
  Throughput speed(ddp);
  std::optional<StepLosses> losses;
  if (!o.step_losses.empty()) losses.emplace(o.step_losses, world);
  auto batch = batches.begin();
  for (std::int64_t step = 1; step <= steps && !world.stop_requested(); ++step) {
    std::int64_t samples = 0;
    const auto backward = [&](const Shard&) {
      const auto [x, y] = std::move(*batch);
      ++batch;  // before the forward, in which the next shard's may begin
      samples += y.numel();
      return backward_in_parts(ddp, x, y, o.accumulate, loss_of);
    };
    if (!o.lockstep) optimizer.zero_grad();
    const double loss = o.lockstep ? ddp.for_each_shard(backward) : backward({});
    optimizer.step();
    if (losses) losses->add(at.step + 1, loss, samples, world);
    run.add_step(loss, samples, ddp, optimizer);
    report_value("loss", loss);
    speed.add(samples);
    progress.show(step, "loss %.4f  %.0f images/s  communication %.1f%%%s", at.mean_loss(), speed.samples_per_second(),
                  100 * speed.communication_share(), run.straggler_text().c_str());
  }
  progress.finish();
  run.save(ddp, optimizer);
  if (world.stop_requested()) return;
  const LoaderOptions loading{.batch_size = local, .workers = o.workers, .pin_memory = device.is_cuda()};
  const auto [val_loss, val_accuracy] =
      o.article_bugs ? evaluate_as_article([&](const at::Tensor& x) { return ddp.module()->forward(x.to(device)); },
                                           test, world, loading, loss_and_accuracy)
                     : evaluate(ddp, test, world, loading, loss_and_accuracy);
  speed = speed.over_all_ranks();
  const double loss = run.mean_loss(), rate = speed.samples_per_second(), share = speed.communication_share();
  report_value("val_accuracy", val_accuracy);
  run.log_metrics({{"train_loss", loss},
                   {"val_loss", val_loss},
                   {"val_accuracy", val_accuracy},
                   {"samples_per_second", rate},
                   {"communication_share", share}});
  log_rank0(world,
            "Iteration %d/%d  Train Loss: %.4f  Val Loss: %.4f  Val Accuracy: %.4f  %.0f images/s  "
            "communication %.1f%%",
            at.epoch + 1, o.epochs, loss, val_loss, val_accuracy, rate, 100 * share);
  if (steps < left) return;
  run.position.begin_next_epoch();
  run.save(ddp, optimizer);
}

template <class Model>
void train_model(Model model, const Options& o, const World& world) {
  FashionMnistOptions layout{.channels = o.model == "resnet18" ? 3 : 1};
  if (o.raw_pixels) layout.mean = 0, layout.deviation = 1;
  const auto plain = FashionMnist::load(o.data, FashionMnist::Split::train, layout);
  const Augmented images(plain, o.augment ? Augmented::Mode::shift_and_mirror : Augmented::Mode::off);
  const auto test = FashionMnist::load(o.data, FashionMnist::Split::test, layout);
  log_rank0(world, "training %s on %zu images, %d ranks over %s, %zu images a step", o.model.c_str(), images.size(),
            world.size(), std::string(world.transport()).c_str(), o.batch_size);
  std::map<std::string, std::string> choices{{"model", o.model}, {"sync_batchnorm", o.sync_batchnorm ? "yes" : "no"}};
  choices.insert({{"batch_size", std::to_string(o.batch_size)}, {"seed", std::to_string(o.seed)}});
  choices.insert({{"accumulate", std::to_string(o.accumulate)}, {"augment", o.augment ? "yes" : "no"}});
  const std::map<std::string, std::string> untold{{"accumulate", "1"}, {"augment", "no"}, {"sync_batchnorm", "no"}};
  TrainingRun run(world, {o.out, choices, untold, 3, o.checkpoint_every});
  const at::Device device = device_of(world);
  model->to(device);
  if (o.sync_batchnorm) convert_sync_batchnorm(model, world);
  DdpOptions options{.lockstep = {o.lockstep ? o.shards : 0, o.seed, o.threads}};
  if (device.is_cuda()) options.device_ids = {device.index()};  // where batches are moved to
  DistributedDataParallel ddp(model, world, options);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(o.lr).momentum(o.momentum));
  if (o.resume) log_rank0(world, "resumed after step %ld", run.resume_if_any(ddp, optimizer).step);
  if (!o.resume) run.start_anew();
  const auto& at = run.position;
  const auto is_done = [&] { return at.epoch >= o.epochs || (o.max_steps != 0 && at.step >= o.max_steps); };
  const auto start = lockstep::steady_clock().now();
  for (bool stop = false; !is_done() && !stop; stop = world.stop_requested()) {
    train_epoch(ddp, optimizer, run, images, test, o, world);
  }
  if (!is_done()) {
    return log_rank0(world, "stopped after step %ld; %s continues it: %s", at.step,
                     o.resume ? "the same command" : "--resume", run.path().c_str());
  }
  log_rank0(world, "Completed training in %.1f seconds.", seconds(lockstep::steady_clock().now() - start));
  if (o.lockstep) log_rank0(world, "SHA-256 of the run: %s", sha256_of(*model, optimizer).c_str());
  log_rank0(world, "checkpoint: %s", run.path().c_str());
}

}  // namespace

void train(const Options& o, const World& world) {
  seed_all(o.seed);
  if (o.model == "resnet18") train_model(models::ResNet18(FashionMnist::kClasses), o, world);
  if (o.model == "cnn") train_model(models::Cnn(FashionMnist::kClasses), o, world);
  if (o.model == "mlp") train_model(models::Mlp(), o, world);
}
