#include "examples/fashion_mnist/augmented.h"

#include <ATen/ATen.h>

#include <vector>

namespace {

constexpr std::int64_t kMostShift = 2;

at::Tensor shifted_and_mirrored(const at::Tensor& images) {
  const std::int64_t count = images.size(0), side = images.size(2);
  const at::Tensor mirror = at::rand({count, 1, 1, 1}) < 0.5;
  const at::Tensor wide = at::replication_pad2d(at::where(mirror, images.flip(3), images),
                                                {kMostShift, kMostShift, kMostShift, kMostShift});
  const at::Tensor shifts = at::randint(2 * kMostShift + 1, {count, 2}, at::kLong);
  const auto shift = shifts.accessor<std::int64_t, 2>();
  std::vector<at::Tensor> moved;
  for (std::int64_t i = 0; i < count; ++i) {
    moved.push_back(wide[i].narrow(1, shift[i][0], side).narrow(2, shift[i][1], side));
  }
  return at::stack(moved);
}

}  // namespace

lockstep::FashionMnist::Batch Augmented::get_batch(std::span<const std::int64_t> indices) const {
  lockstep::FashionMnist::Batch batch = images_.get_batch(indices);
  if (mode_ == Mode::shift_and_mirror) batch.data = shifted_and_mirrored(batch.data);
  return batch;
}
