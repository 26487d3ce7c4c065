// Images that are shifted by up to two pixels, and half of them mirrored, different in each epoch. A dataset around
// another dataset.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/lockstep.h"

class Augmented {
 public:
  enum class Mode { off, shift_and_mirror };
  // Refers to the images, which must outlive it.
  Augmented(const lockstep::FashionMnist& images, Mode mode) : images_(images), mode_(mode) {}

  std::size_t size() const { return images_.size(); }
  // Thread-safe. Its random numbers are those that the loader gives a batch.
  lockstep::FashionMnist::Batch get_batch(std::span<const std::int64_t> indices) const;

 private:
  const lockstep::FashionMnist& images_;
  const Mode mode_;
};
