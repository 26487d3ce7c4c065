// Matrices approximated as products of thin ones, M ~ P Q^T: the arithmetic of PowerSGD. All P lie in one piece of
// memory and all Q in another, so that each is one tensor to a collective. Belongs to one thread; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::internal {

// Makes the columns of each matrix of a batch [n, rows, columns] orthonormal, in place; columns <= rows. Each column is
// divided by its length plus epsilon. A column of zeros remains zero, except where there are over two columns of 32 or
// 64 bits, for which this is a QR factorisation without an epsilon.
void orthogonalize(const at::Tensor& matrices, double epsilon);

class LowRank {
 public:
  // matrices: [batch, n, m] each, of one dtype and device, with a largest rank to approximate each by.
  LowRank(std::vector<at::Tensor> matrices, std::int64_t rank);

  // For the memory of all P or all Q: as many elements as it has, uninitialised at first.
  const at::Tensor& p() const { return p_; }
  const at::Tensor& q() const { return q_; }
  // Q of one of the matrices that were given: [batch, m, rank].
  const at::Tensor& q_of(std::size_t matrices) const { return qs_[matrices]; }

  // Q from a standard normal distribution, the same for equal seeds.
  void draw_q(std::uint64_t seed) const;
  void orthogonalize_p(double epsilon) const;
  void orthogonalize_q(double epsilon) const;
  void compute_p() const;         // M Q
  void compute_q() const;         // M^T P
  void compute_matrices() const;  // P Q^T, in place

 private:
  std::vector<at::Tensor> matrices_;
  at::Tensor p_, q_;
  std::vector<at::Tensor> ps_, qs_;  // views of them: [batch, n, rank] and [batch, m, rank]
};

}  // namespace lockstep::internal
