// Tensors of every look that torch can give the same numbers: where they lie, in which order, with which lazy bits. And
// what reductions make of them, by plain torch.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep::testing {

using namespace internal;

using Sizes = std::vector<std::int64_t>;

enum class Place { plain, offset, shared, twin, odd, inference };
enum class Strides { in_order, transposed, stepped, channels_last, expanded };
enum class Bits { none, conj, neg, both };

struct Look {
  Place place = Place::plain;
  Strides strides = Strides::in_order;
  Bits bits = Bits::none;
  bool requires_grad = false;
};

// A tensor of a look, and what must not change with it.
struct Specimen {
  at::Tensor tensor;
  at::Tensor twin;         // shares the memory until one of them is written (copy on write)
  at::Tensor twin_values;  // as they were
  std::vector<char> memory;
};

// Small whole numbers: every type holds their sums and products exactly.
inline at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, std::int64_t seed, std::int64_t scale = 1) {
  const std::int64_t count = c10::multiply_integers(sizes);
  const at::Tensor steps = at::arange(count, at::kLong) * 7 + seed * 13 + at::arange(count, at::kLong).div(3, "floor");
  if (dtype == at::kBool) return (steps % 2).to(at::kBool).reshape(sizes);
  const bool is_signed = c10::isSignedType(dtype);
  const at::Tensor whole = (steps % 5 - (is_signed ? 2 : 0)) * scale;
  if (!c10::isComplexType(dtype)) return whole.to(dtype).reshape(sizes);
  return at::complex(whole.to(at::kDouble), ((steps + seed) % 3 * scale).to(at::kDouble)).to(dtype).reshape(sizes);
}

// Dense, in order, without lazy bits.
inline at::Tensor plain(const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false)).copy_(tensor);
}

inline bool same_values(const at::Tensor& got, const at::Tensor& wanted, bool nearly = false) {
  if (got.sizes() != wanted.sizes() || got.scalar_type() != wanted.scalar_type()) return false;
  const at::Tensor left = plain(got), right = plain(wanted);
  if (nearly) return at::allclose(left, right, 1e-2, 1e-3);
  const bool is_number = c10::isIntegralType(got.scalar_type(), true) || got.scalar_type() == at::kFloat ||
                         got.scalar_type() == at::kDouble || got.scalar_type() == at::kHalf ||
                         got.scalar_type() == at::kBFloat16 || c10::isComplexType(got.scalar_type());
  if (is_number && got.scalar_type() != at::kUInt16) return at::equal(left, right);
  return at::equal(left.reshape({-1}).view(at::kByte), right.reshape({-1}).view(at::kByte));
}

namespace zoo {

inline Look random_look(std::mt19937& random, at::ScalarType dtype, bool only_read) {
  Look look;
  look.place = static_cast<Place>(random() % 6);
  look.strides = static_cast<Strides>(random() % (only_read ? 5 : 4));
  look.bits = static_cast<Bits>(random() % 4);
  look.requires_grad = random() % 4 == 0;
  const bool is_complex = c10::isComplexType(dtype), is_float = c10::isFloatingType(dtype) || is_complex;
  const bool can_negate = c10::isSignedType(dtype) && c10::elementSize(dtype) > 1;
  if (is_complex && look.place == Place::odd) look.place = Place::plain;  // torch cannot write these
  if (!is_complex && look.bits == Bits::conj) look.bits = Bits::none;
  if (!is_complex && look.bits == Bits::both) look.bits = Bits::neg;
  if (!can_negate && look.bits == Bits::neg) look.bits = Bits::none;
  if (!is_float || look.place == Place::inference) look.requires_grad = false;
  return look;
}

// The sizes as they lie in memory.
inline Sizes physical(at::IntArrayRef sizes, Strides strides) {
  Sizes made = sizes.vec();
  if (made.empty()) return made;
  if (strides == Strides::transposed) std::reverse(made.begin(), made.end());
  if (strides == Strides::stepped) made.back() *= 2;
  if (strides == Strides::channels_last && made.size() == 4) made = {made[0], made[2], made[3], made[1]};
  if (strides == Strides::expanded && made[0] != 0) made[0] = 1;
  return made;
}

inline at::Tensor arranged(const at::Tensor& memory, at::IntArrayRef sizes, Strides strides) {
  if (sizes.empty()) return memory;
  if (strides == Strides::transposed) {
    Sizes order;
    for (std::int64_t i = memory.dim(); i-- > 0;) order.push_back(i);
    return memory.permute(order);
  }
  if (strides == Strides::stepped) return memory.slice(-1, 0, memory.size(-1), 2);
  if (strides == Strides::channels_last && sizes.size() == 4) return memory.permute({0, 3, 1, 2});
  return memory;
}

inline at::Tensor memory_of(const ProcessGroup& group, const Sizes& sizes, at::ScalarType dtype, Place place,
                            std::vector<char>& odd) {
  const std::int64_t count = c10::multiply_integers(sizes);
  if (place == Place::shared) return group.empty(sizes, dtype);
  if (place == Place::offset) return at::empty({count + 3}, dtype).narrow(0, 3, count).view(sizes);
  if (place == Place::odd) {
    odd.resize(static_cast<std::size_t>(count) * c10::elementSize(dtype) + 1);
    return at::from_blob(odd.data() + 1, sizes, dtype);
  }
  return at::empty(sizes, dtype);
}

}  // namespace zoo

// A tensor with these numbers. One that is expanded has the first row of them everywhere.
inline Specimen specimen_of(const ProcessGroup& group, const at::Tensor& content, const Look& look) {
  Specimen made;
  std::optional<c10::InferenceMode> inference;
  if (look.place == Place::inference) inference.emplace(true);
  const at::Tensor memory = zoo::memory_of(group, zoo::physical(content.sizes(), look.strides), content.scalar_type(),
                                           look.place, made.memory);
  memory.zero_();
  at::Tensor view = zoo::arranged(memory, content.sizes(), look.strides);
  if (look.bits == Bits::conj || look.bits == Bits::both) view = at::conj(view);
  if (look.bits == Bits::neg || look.bits == Bits::both) view = at::_neg_view(view);
  const bool expands = look.strides == Strides::expanded && content.dim() > 0 && content.size(0) > 0;
  view.copy_(expands ? content.narrow(0, 0, 1) : content);
  if (look.place == Place::twin) {
    made.twin = at::_lazy_clone(memory);
    made.twin_values = memory.clone();
  }
  made.tensor = expands ? view.expand(content.sizes()) : view;
  if (look.requires_grad) made.tensor.set_requires_grad(true);
  return made;
}

// What changes no number that is reduced with it: `like` says of which type and sizes.
inline at::Tensor identity_like(const at::Tensor& like, ReduceOp op) {
  const at::ScalarType type = like.scalar_type();
  const bool is_limit = op == ReduceOp::min || op == ReduceOp::max;
  if (type == at::kBool)
    return at::full_like(like, op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::band);
  if (is_limit && at::isFloatingType(type)) return at::full_like(like, op == ReduceOp::min ? INFINITY : -INFINITY);
  if (is_limit) {
    const int bits = static_cast<int>(like.element_size()) * 8 - (type == at::kByte ? 0 : 1);
    const std::int64_t largest = static_cast<std::int64_t>(~std::uint64_t{0} >> (64 - bits));
    return at::full_like(like, op == ReduceOp::min ? largest : type == at::kByte ? 0 : -largest - 1);
  }
  if (op == ReduceOp::band) return at::zeros_like(like).bitwise_not();
  return at::full_like(like, op == ReduceOp::product ? 1 : 0);
}

inline at::Tensor expected_reduction(const std::vector<at::Tensor>& all, ReduceOp op) {
  at::Tensor result = all.at(0);
  const bool is_bool = result.scalar_type() == at::kBool;
  for (std::size_t i = 1; i < all.size(); ++i) {
    switch (op) {
      case ReduceOp::sum: result = is_bool ? at::logical_or(result, all[i]) : result + all[i]; break;
      case ReduceOp::avg: result = result + all[i]; break;
      case ReduceOp::product: result = is_bool ? at::logical_and(result, all[i]) : result * all[i]; break;
      case ReduceOp::min: result = at::minimum(result, all[i]); break;
      case ReduceOp::max: result = at::maximum(result, all[i]); break;
      case ReduceOp::band: result = at::bitwise_and(result, all[i]); break;
      case ReduceOp::bor: result = at::bitwise_or(result, all[i]); break;
      case ReduceOp::bxor: result = at::bitwise_xor(result, all[i]); break;
    }
  }
  return op == ReduceOp::avg ? result / static_cast<double>(all.size()) : result;
}

}  // namespace lockstep::testing
