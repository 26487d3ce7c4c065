#include "lockstep/train/ddp/comm_hooks/low_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <utility>

namespace lockstep::internal {
namespace {

void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const std::int64_t columns = matrices.size(2);
  for (std::int64_t i = 0; i < columns; ++i) {
    const at::Tensor column = matrices.narrow(2, i, 1);
    const at::Tensor length = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true).add_(epsilon);
    column.div_(length.masked_fill_(length.eq(0), 1));
    if (i + 1 == columns) return;
    const at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(column.mul(rest).sum({1}, /*keepdim=*/true).mul(column));
  }
}

}  // namespace

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  const bool half = matrices.element_size() < 4;  // for which there is no QR factorisation
  if (matrices.size(2) <= 2 || half) return gram_schmidt(matrices, epsilon);
  matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
}

LowRank::LowRank(std::vector<at::Tensor> matrices, std::int64_t rank) : matrices_(std::move(matrices)) {
  std::int64_t p_elements = 0, q_elements = 0;
  const auto rank_of = [rank](const at::Tensor& matrix) { return std::min({matrix.size(1), matrix.size(2), rank}); };
  for (const at::Tensor& matrix : matrices_) {
    p_elements += matrix.size(0) * matrix.size(1) * rank_of(matrix);
    q_elements += matrix.size(0) * matrix.size(2) * rank_of(matrix);
  }
  const at::TensorOptions options = matrices_.empty() ? at::TensorOptions() : matrices_.front().options();
  p_ = at::empty({p_elements}, options);
  q_ = at::empty({q_elements}, options);
  std::int64_t p_offset = 0, q_offset = 0;
  for (const at::Tensor& matrix : matrices_) {
    const std::int64_t batch = matrix.size(0), n = matrix.size(1), m = matrix.size(2), r = rank_of(matrix);
    ps_.push_back(p_.narrow(0, p_offset, batch * n * r).view({batch, n, r}));
    qs_.push_back(q_.narrow(0, q_offset, batch * m * r).view({batch, m, r}));
    p_offset += batch * n * r;
    q_offset += batch * m * r;
  }
}

void LowRank::draw_q(std::uint64_t seed) const {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const at::Tensor& q : qs_) q.copy_(at::randn(q.sizes(), generator, q.options().device(at::kCPU)));
}

void LowRank::orthogonalize_p(double epsilon) const {
  for (const at::Tensor& p : ps_) orthogonalize(p, epsilon);
}

void LowRank::orthogonalize_q(double epsilon) const {
  for (const at::Tensor& q : qs_) orthogonalize(q, epsilon);
}

void LowRank::compute_p() const {
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    at::Tensor p = ps_[i];
    at::bmm_out(p, matrices_[i], qs_[i]);
  }
}

void LowRank::compute_q() const {
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    at::Tensor q = qs_[i];
    at::bmm_out(q, matrices_[i].transpose(1, 2), ps_[i]);
  }
}

void LowRank::compute_matrices() const {
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    at::Tensor matrix = matrices_[i];
    at::bmm_out(matrix, ps_[i], qs_[i].transpose(1, 2));
  }
}

}  // namespace lockstep::internal
