// Trains a small GPT on the characters of a text, data parallel, and prints a sample of its output. A run that was
// stopped continues from its newest checkpoint.
//   lockstep run --nproc-per-node 2 build/bin/char_gpt [examples/char_gpt/char_gpt.toml]
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <numbers>
#include <string>

#include "examples/char_gpt/config.h"
#include "examples/char_gpt/text.h"
#include "examples/models/gpt.h"
#include "lockstep/lockstep.h"

namespace {

struct Sequences {
  at::Tensor input, next;  // int64 [n, context]
};

// This rank's part of a step's sequences: `mine` of them. All of them follow from seed and step, at any number of
// ranks; so a resumed run sees the same sequences.
Sequences sequences_of(std::int64_t step, std::int64_t mine, const at::Tensor& text, const Config& config,
                       const lockstep::World& world) {
  const std::int64_t context = config.model.context;
  auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(config.training.seed << 32 | step));
  const at::Tensor starts = at::randint(text.numel() - context, {config.training.batch, 1}, random, at::kLong);
  const at::Tensor indices = starts.narrow(0, world.rank() * mine, mine) + at::arange(context + 1);
  const at::Tensor chosen = text.take(indices);
  return {chosen.narrow(1, 0, context), chosen.narrow(1, 1, context)};
}

// Rises to the highest, then falls to a tenth of it along a cosine.
double learning_rate(std::int64_t step, const Config::Training& training) {
  const auto part = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  if (step < training.warmup_steps) return training.learning_rate * part(step + 1, training.warmup_steps);
  const double done =
      part(step - training.warmup_steps, std::max<std::int64_t>(training.steps - training.warmup_steps, 1));
  return training.learning_rate * (0.55 + 0.45 * std::cos(std::numbers::pi * std::min(done, 1.0)));
}

std::string write_text(models::Gpt& model, const Vocabulary& vocabulary, const Config& config) {
  const at::NoGradGuard no_grad;
  model->eval();
  lockstep::seed_all(static_cast<std::uint64_t>(config.training.seed));
  std::string text = config.sample.prompt;
  at::Tensor tokens = at::tensor(vocabulary.encode(text)).unsqueeze(0);
  for (std::int64_t i = 0; i < config.sample.characters; ++i) {
    const std::int64_t seen = std::min(tokens.size(1), config.model.context);
    const at::Tensor logits = model->forward(tokens.narrow(1, tokens.size(1) - seen, seen)).select(1, -1);
    const at::Tensor next = at::multinomial(at::softmax(logits / config.sample.temperature, 1), 1);
    text += vocabulary.decode(next.item<std::int64_t>());
    tokens = at::cat({tokens, next}, 1);
  }
  return text;
}

void train(const Config& config, const lockstep::World& world) {
  const auto batch = lockstep::BatchSize::global(static_cast<std::size_t>(config.training.batch));
  const auto mine = static_cast<std::int64_t>(batch.local(world.size()));  // or an error
  if (!std::filesystem::exists(config.text)) log_rank0(world, "no file '%s': text is generated", config.text.c_str());
  const std::string text = read_or_make_text(config.text);
  const Vocabulary vocabulary(text);
  const at::Tensor tokens = at::tensor(vocabulary.encode(text));

  lockstep::seed_all(static_cast<std::uint64_t>(config.training.seed));
  models::Gpt model(models::GptOptions{.vocabulary = vocabulary.size(),
                                       .context = config.model.context,
                                       .layers = config.model.layers,
                                       .heads = config.model.heads,
                                       .width = config.model.width});
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(config.training.learning_rate));
  std::int64_t parameters = 0;
  for (const auto& parameter : ddp.parameters()) parameters += parameter.numel();
  log_rank0(world, "%zu characters, %ld different ones; %ld parameters; %d ranks", text.size(), vocabulary.size(),
            parameters, world.size());

  lockstep::State state{.model = ddp, .optimizer = optimizer};
  if (const auto loaded = lockstep::load_if_any(config.out, state, world)) {
    state.step = loaded->step;
    log_rank0(world, "resumed after step %ld", state.step);
  }
  const auto save = [&] { lockstep::save(config.out, state, world, {.retention = {.keep_last = 2}}); };
  lockstep::Throughput speed(ddp);
  while (state.step < config.training.steps && !world.stop_requested()) {
    const auto [input, next] = sequences_of(state.step, mine, tokens, config, world);
    for (auto& group : optimizer.param_groups()) group.options().set_lr(learning_rate(state.step, config.training));
    optimizer.zero_grad();
    const at::Tensor logits = ddp(input);
    const at::Tensor mean = at::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
    mean.backward();
    lockstep::clip_grad_norm(ddp.parameters(), config.training.clip_norm);
    optimizer.step();
    speed.add(next.numel());
    ++state.step;
    if (state.step % config.training.save_every == 0) {
      save();
      const double loss = world.weighted_mean(mean.item<double>(), 1);
      log_rank0(world, "step %ld: loss %.3f, %.0f characters/s", state.step, loss, speed.samples_per_second());
    }
  }
  save();
  if (state.step < config.training.steps) return log_rank0(world, "stopped after step %ld", state.step);
  if (world.is_main_rank()) std::printf("%s\n", write_text(model, vocabulary, config).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Config config = argc > 1 ? read_config(argv[1]) : Config();
    train(config, lockstep::init_process_group());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "char_gpt: %s\n", error.what());
    return 1;
  }
}
