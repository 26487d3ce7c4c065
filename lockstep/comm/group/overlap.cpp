#include "lockstep/comm/group/overlap.h"

#include <algorithm>

namespace lockstep::internal {
namespace {

constexpr int kMostSteps = 100'000;

// One term of a sum: stride times anything from 0 to `most`.
struct Term {
  std::int64_t stride = 0;
  std::int64_t most = 0;
  std::int64_t plain = 0;  // the factor that it has in the solution that does not count
};

// Whether the terms can add up to a sum. Terms by falling stride: what the smaller ones can reach leaves few factors to
// try. With `other`, only a solution that differs from the plain one counts.
class Search {
 public:
  enum class Wanted { any, other };

  Search(std::vector<Term> terms, Wanted wanted) : terms_(std::move(terms)), wanted_(wanted) {
    std::ranges::sort(terms_, [](const Term& left, const Term& right) { return left.stride > right.stride; });
    reach_.resize(terms_.size() + 1);
    for (std::size_t i = terms_.size(); i-- > 0;) reach_[i] = reach_[i + 1] + terms_[i].stride * terms_[i].most;
  }

  bool adds_up_to(std::int64_t sum) { return search(0, sum, wanted_ == Wanted::any); }

 private:
  bool search(std::size_t at, std::int64_t left, bool counts) {
    if (left < 0 || left > reach_[at]) return false;
    if (++steps_ > kMostSteps) return true;  // gives up
    if (at == terms_.size()) return counts;
    const Term& term = terms_[at];
    const std::int64_t rest = reach_[at + 1];
    const std::int64_t least = left <= rest ? 0 : (left - rest + term.stride - 1) / term.stride;
    for (std::int64_t factor = std::min(term.most, left / term.stride); factor >= least; --factor) {
      if (search(at + 1, left - factor * term.stride, counts || factor != term.plain)) return true;
    }
    return false;
  }

  std::vector<Term> terms_;
  Wanted wanted_;
  std::vector<std::int64_t> reach_;  // of a term and all behind it
  int steps_ = 0;
};

std::int64_t extent_bytes(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return (last + 1) * static_cast<std::int64_t>(tensor.element_size());
}

MemorySpan span_of(const at::Tensor& tensor, std::size_t index) {
  if (tensor.numel() == 0 || !tensor.has_storage()) return {};
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + static_cast<std::uintptr_t>(extent_bytes(tensor)), index};
}

void add_bytes(const at::Tensor& tensor, std::vector<Term>& terms) {
  const auto element = static_cast<std::int64_t>(tensor.element_size());
  terms.push_back({1, element - 1});
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != 0) terms.push_back({tensor.stride(i) * element, tensor.size(i) - 1});
  }
}

// Terms of one stride are one term.
void merge(std::vector<Term>& terms) {
  std::ranges::sort(terms, {}, &Term::stride);
  std::size_t kept = 0;
  for (std::size_t i = 1; i < terms.size(); ++i) {
    if (terms[i].stride == terms[kept].stride) {
      terms[kept].most += terms[i].most;
    } else {
      terms[++kept] = terms[i];
    }
  }
  terms.resize(kept + 1);
}

void by_address(std::vector<MemorySpan>& spans) {
  std::ranges::sort(spans, {}, [](const MemorySpan& span) { return std::pair(span.begin, span.index); });
}

}  // namespace

bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.numel() < 2 || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<Term> terms;
  std::int64_t sum = 0;  // of the plain solution: two equal elements
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    const std::int64_t most = tensor.size(i) - 1, stride = tensor.stride(i);
    if (most == 0) continue;
    if (stride == 0) return true;
    terms.push_back({stride, 2 * most, most});
    sum += stride * most;
  }
  return Search(std::move(terms), Search::Wanted::other).adds_up_to(sum);
}

bool overlap(const at::Tensor& left, const at::Tensor& right) {
  const MemorySpan a = span_of(left, 0), b = span_of(right, 1);
  if (a.begin == a.end || b.begin == b.end || left.device() != right.device()) return false;
  if (a.end <= b.begin || b.end <= a.begin) return false;
  if (left.is_non_overlapping_and_dense() && right.is_non_overlapping_and_dense()) return true;
  // A byte of both: its way from the first of `left`, and back from the last of `right`, add up to the way between.
  std::vector<Term> terms;
  add_bytes(left, terms);
  add_bytes(right, terms);
  merge(terms);
  return Search(std::move(terms), Search::Wanted::any).adds_up_to(static_cast<std::int64_t>(b.end - 1 - a.begin));
}

void list_spans(std::span<const Segment> segments, std::vector<MemorySpan>& spans) {
  spans.clear();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].bytes == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(segments[i].data);
    spans.push_back({begin, begin + segments[i].bytes, i});
  }
  by_address(spans);
}

std::optional<std::pair<std::size_t, std::size_t>> find_overlap(at::TensorList tensors,
                                                                std::vector<MemorySpan>& spans) {
  spans.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const MemorySpan span = span_of(tensors[i], i);
    if (span.begin != span.end) spans.push_back(span);
  }
  by_address(spans);
  std::uintptr_t reach = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    for (std::size_t j = 0; spans[i].begin < reach && j < i; ++j) {
      if (spans[j].end <= spans[i].begin || !overlap(tensors[spans[i].index], tensors[spans[j].index])) continue;
      return std::minmax(spans[i].index, spans[j].index);
    }
    reach = std::max(reach, spans[i].end);
  }
  return std::nullopt;
}

std::size_t bytes_within(const Segment& segment, const std::vector<MemorySpan>& spans) {
  const auto begin = reinterpret_cast<std::uintptr_t>(segment.data), end = begin + segment.bytes;
  auto span = std::ranges::upper_bound(spans, begin, {}, &MemorySpan::end);
  std::size_t bytes = 0;
  for (; span != spans.end() && span->begin < end; ++span) {
    bytes += std::min(end, span->end) - std::max(begin, span->begin);
  }
  return bytes;
}

bool is_part_of(std::span<const Segment> part, std::span<const Segment> whole, std::size_t offset) {
  std::size_t at = 0;  // which of the whole
  for (const Segment& piece : part) {
    for (std::size_t done = 0; done < piece.bytes;) {
      while (at < whole.size() && offset >= whole[at].bytes) offset -= whole[at++].bytes;
      if (at == whole.size() || whole[at].data + offset != piece.data + done) return false;
      const std::size_t bytes = std::min(piece.bytes - done, whole[at].bytes - offset);
      done += bytes;
      offset += bytes;
    }
  }
  return true;
}

}  // namespace lockstep::internal
