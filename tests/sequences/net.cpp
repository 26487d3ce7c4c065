#include "tests/sequences/net.h"

#include <ATen/ATen.h>

#include <limits>

#include "tests/graphs/dice.h"
#include "tests/graphs/functions.h"

namespace lockstep::sequences {
namespace {

constexpr int kWidth = 3;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  at::Tensor values = at::empty(sizes, at::kDouble);
  testing::Dice dice(seed);
  double* data = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = dice.between_ones();
  return values;
}

}  // namespace

Head::Head(std::uint64_t seed) { weight = register_parameter("weight", random({kWidth, kWidth}, seed)); }

Net::Net(const Setting& setting, std::uint64_t seed) {
  trunk = register_parameter("trunk", random({kWidth, kWidth}, seed + 1));
  bias = register_parameter("bias", random({kWidth}, seed + 2));
  end = register_parameter("end", random({kWidth}, seed + 3));
  heads[0] = register_module("head0", std::make_shared<Head>(seed + 4));
  heads[1] = register_module("head1", std::make_shared<Head>(seed + 5));
  if (!setting.norm) return;
  norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
  norm->to(at::kDouble);
}

at::Tensor Net::forward(const at::Tensor& x, const Call& call) {
  if (call.throws == Throws::in_forward) throw Thrown();
  at::Tensor hidden = at::linear(x, trunk, bias);
  if (late.defined()) hidden = hidden + late;
  if (norm) hidden = norm(hidden);
  hidden = hidden.tanh();
  if (call.throws == Throws::in_middle) hidden = testing::fuse(hidden, true);
  at::Tensor output = hidden;
  if ((call.parts & 1U) != 0) output = output + hidden.mm(heads[0]->weight);
  if ((call.parts & 2U) != 0) output = output + hidden.mm(heads[1]->weight);
  if (late_head) output = output + hidden.mm(late_head->weight);
  if ((call.parts & 4U) != 0) output = output + end;
  return call.throws == Throws::at_output ? testing::fuse(output, true) : output;
}

void Net::set_mode(const Setting& setting, bool trains) {
  train(trains && !setting.norm_in_eval);
  if (norm) norm->train(trains);
}

void Net::add_parameter(std::uint64_t seed) { late = register_parameter("late", random({kWidth}, seed)); }
void Net::add_module(std::uint64_t seed) { late_head = register_module("late_head", std::make_shared<Head>(seed)); }
void Net::replace_head(std::uint64_t seed) { heads[1] = replace_module("head1", std::make_shared<Head>(seed)); }

at::Tensor& Net::freezable(int choice) { return choice == 0 ? bias : choice == 1 ? heads[0]->weight : end; }

std::uint64_t seed_of(const Place& place) {
  testing::Dice dice(place.sequence.seed + static_cast<std::uint64_t>(place.event.id) * 1000003 +
                     static_cast<std::uint64_t>(place.iteration) * 10007 +
                     static_cast<std::uint64_t>(place.rank) * 101);
  return dice.next();
}

at::Tensor input_of(const Place& place) {
  const std::uint64_t seed = seed_of(place);
  const std::int64_t least = place.sequence.setting.norm ? 3 : 1;
  at::Tensor x = random({least + static_cast<std::int64_t>(seed % 4), kWidth}, seed);
  if (place.event.bad == Bad::infinite && place.event.rank == place.rank) {
    *x.mutable_data_ptr<double>() = std::numeric_limits<double>::infinity();
  }
  return x;
}

double scale_of(const Place& place) {
  if (place.event.bad != Bad::huge || place.event.rank != place.rank) return 1;
  return place.sequence.setting.reduces_float ? 1e45 : 1e9;
}

at::Tensor loss_of(const at::Tensor& output, int number, double scale) {
  const at::Tensor sum = number % 2 == 0 ? output.square().sum() : output.sum();
  return sum * (scale * (1 + number) / static_cast<double>(output.size(0)));
}

std::optional<double> weight_of(const Place& place) {
  if ((place.event.weightless >> static_cast<unsigned>(place.rank) & 1U) != 0) return 0.0;
  return place.event.weight == 0 ? std::nullopt : std::optional(place.event.weight);
}

unsigned parts_of(const Place& place) {
  return place.event.parts >> (3U * static_cast<unsigned>(place.rank)) & kAllParts;
}

bool is_synchronised(const Event& forward) {
  for (int model = 0; model < kModels; ++model) {
    if (forward.through[model] && !forward.local[model]) return true;
  }
  return false;
}

}  // namespace lockstep::sequences
