#include "tests/graphs/check.h"

#include <ATen/ATen.h>

#include <exception>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "tests/graphs/functions.h"
#include "tests/graphs/reference.h"
#include "tests/graphs/run_ddp.h"
#include "tests/support/local_groups.h"

namespace lockstep::testing {
namespace {

at::Tensor dense(const at::Tensor& value) {
  at::Tensor plain = value.is_sparse() ? value.to_dense() : value;
  plain = plain.resolve_conj().resolve_neg();
  if (plain.is_complex()) plain = at::view_as_real(plain);
  return plain.contiguous().nan_to_num(12345, 23456, -23456);
}

// Empty if they are the same.
std::string difference(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  if (found.defined() != expected.defined()) return found.defined() ? "is there, and none by hand" : "is missing";
  if (!found.defined()) return {};
  if (found.scalar_type() != expected.scalar_type()) {
    return std::string("is ") + c10::toString(found.scalar_type()) + ", by hand " +
           c10::toString(expected.scalar_type());
  }
  if (found.is_sparse() != expected.is_sparse()) return found.is_sparse() ? "is sparse" : "is dense";
  if (found.sizes() != expected.sizes()) return "has other sizes";
  const at::Tensor one = dense(found), other = dense(expected);
  if (at::equal(one, other)) return {};
  const at::Tensor off = (one.to(at::kDouble) - other.to(at::kDouble)).abs();
  const double worst = off.max().item<double>(), size = other.to(at::kDouble).abs().max().item<double>();
  if (worst <= tolerance * (size + 0.01)) return {};
  return "differs in " + std::to_string(at::ne(one, other).sum().item<std::int64_t>()) + " of " +
         std::to_string(one.numel()) + " numbers, at most by " + c10::str(worst) + " where the largest is " +
         c10::str(size);
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Blown&) {
    return "the backward's own exception came out where none was expected";
  } catch (const c10::Error& exception) {
    return exception.what_without_backtrace();
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "something that is no exception";
  }
}

}  // namespace

std::optional<std::string> difference(const Trace& found, const Trace& expected, int rank, double tolerance) {
  const std::string prefix = "rank " + std::to_string(rank) + ": ";
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    if (found[i].name != expected[i].name) return prefix + found[i].name + " (by hand: " + expected[i].name + ")";
    const std::string text = difference(found[i].value, expected[i].value, tolerance);
    if (!text.empty()) return prefix + found[i].name + " " + text;
  }
  if (found.size() != expected.size()) return prefix + "another number of records than by hand";
  return std::nullopt;
}

std::optional<std::string> check(const Case& one) {
  std::vector<Trace> expected;
  try {
    expected = run_by_hand(one);
  } catch (...) {
    throw std::logic_error("by hand: " + text_of(std::current_exception()));
  }
  std::vector<Trace> found(expected.size());
  const auto errors =
      run_group(one.mode.ranks, one.mode.over_links ? Over::links : Over::arena,
                [&](const ProcessGroup& group) { found[static_cast<std::size_t>(group.rank())] = run_ddp(one, group); },
                {.timeout = std::chrono::seconds(3)});
  std::optional<std::string> first;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank]) continue;
    const std::string text = "rank " + std::to_string(rank) + " threw: " + text_of(errors[rank]);
    // What the others say of the rank that failed is less than what it says itself.
    if (text.find("another rank failed") == std::string::npos) return text;
    first = text;
  }
  if (first) return first;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    const auto text = difference(found[rank], expected[rank], static_cast<int>(rank), tolerance_of(one));
    if (text) return text;
  }
  return std::nullopt;
}

}  // namespace lockstep::testing
