// A random call of all ranks with random tensors: what every rank gives, and what it must get.
#pragma once

#include <ATen/ATen.h>

#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group/tensor_segments.h"
#include "tests/support/local_groups.h"
#include "tests/unit/group/tensor_zoo.h"

namespace lockstep::testing {

using namespace internal;

enum class Verb {
  all_reduce_one,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  all_gather_into,
  gather,
  gather_into,
  scatter,
  reduce_scatter,
  all_to_all,
  all_to_all_single,
  ragged,
  gather_coalesced,
  scatter_coalesced,
  premultiplied,
  message,
  batch,
  scan,
  exclusive_scan,
  all_objects,
  root_object,
  last = root_object
};
inline const char* const kVerbs[] = {"all_reduce of one",
                                     "all_reduce",
                                     "reduce",
                                     "broadcast",
                                     "all_gather",
                                     "all_gather_into",
                                     "gather",
                                     "gather_into",
                                     "scatter",
                                     "reduce_scatter",
                                     "all_to_all",
                                     "all_to_all_single",
                                     "all_gather_v",
                                     "all_gather_coalesced",
                                     "reduce_scatter_coalesced",
                                     "all_reduce_premul_sum",
                                     "send and recv",
                                     "batch_isend_irecv",
                                     "scan",
                                     "exclusive_scan",
                                     "all_gather_object",
                                     "broadcast_object"};
enum class Form { blocking, async, in_caller };
// Of lists that are worked on in place: the same tensor again and again, windows of one vector, a square and what it is
// transposed.
enum class Lists { apart, same, windows, turned };
// Of calls with inputs and outputs: the one side is part of the other, namely this rank's or the next one's.
enum class Alias { none, own_part, other_part };
// What some ranks call first, with tensors that are refused.
enum class Wrong { nothing, undefined, sparse, meta, quantized, nested, opaque, expanded, folded, overlapping };
inline const char* const kWrongs[] = {"nothing", "undefined", "sparse",   "meta",   "quantized",
                                      "nested",  "opaque",    "expanded", "folded", "overlapping"};

struct Features {
  bool places = true, strides = true, bits = true, requires_grad = true;
};

struct Case {
  unsigned seed = 0;
  Over over = Over::arena;
  int ranks = 1;
  Verb verb = Verb::all_reduce;
  Form form = Form::blocking;
  at::ScalarType dtype = at::kFloat;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
  std::vector<Sizes> shapes = {};
  Lists lists = Lists::apart;
  Alias alias = Alias::none;
  Wrong wrong = Wrong::nothing;
  Features features = {};
  unsigned adorned = ~0U;  // the ranks whose tensors are not plain ones, as bits
};

inline bool is_scan(Verb verb) { return verb == Verb::scan || verb == Verb::exclusive_scan; }
inline bool is_in_place(Verb verb) {
  return is_scan(verb) || verb == Verb::all_reduce_one || verb == Verb::all_reduce || verb == Verb::reduce ||
         verb == Verb::broadcast || verb == Verb::premultiplied;
}
inline bool is_reduction(Verb verb) {
  return (is_in_place(verb) && verb != Verb::broadcast) || verb == Verb::reduce_scatter ||
         verb == Verb::scatter_coalesced;
}
inline bool takes_a_list(Verb verb) {
  return (is_in_place(verb) && verb != Verb::all_reduce_one) || verb == Verb::all_gather_into ||
         verb == Verb::reduce_scatter || verb == Verb::gather_coalesced || verb == Verb::scatter_coalesced;
}
inline bool may_alias(Verb verb) {
  return verb == Verb::all_gather_into || verb == Verb::gather_into || verb == Verb::scatter ||
         verb == Verb::reduce_scatter || verb == Verb::all_to_all;
}
inline bool may_be_async(Verb verb) {
  return (is_in_place(verb) && verb != Verb::premultiplied) || may_alias(verb) || verb == Verb::message;
}

inline Sizes random_sizes(std::mt19937& random) {
  if (random() % 16 == 0) return {static_cast<std::int64_t>(random() % 9000)};
  if (random() % 24 == 0) return {static_cast<std::int64_t>(random() % 300), 100};
  Sizes sizes(random() % 5);
  for (std::int64_t& size : sizes) size = random() % 9 == 0 ? 0 : static_cast<std::int64_t>(random() % 4 + 1);
  return sizes;
}

inline Case random_case(unsigned seed, Over over, int ranks) {
  static constexpr at::ScalarType kTypes[] = {
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,     at::kInt,           at::kLong,   at::kShort,
      at::kByte,  at::kChar,   at::kBool, at::kComplexFloat, at::kComplexDouble, at::kUInt16, at::kFloat8_e5m2};
  std::mt19937 random(seed);
  Case c{.seed = seed, .over = over, .ranks = ranks};
  c.verb = static_cast<Verb>(random() % (static_cast<unsigned>(Verb::last) + 1));
  c.form = may_be_async(c.verb) ? static_cast<Form>(random() % 3) : Form::blocking;
  c.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  do {
    c.dtype = kTypes[random() % (is_reduction(c.verb) ? 12 : 14)];
    c.reduce = static_cast<ReduceOp>(random() % 8);
    if (c.verb == Verb::premultiplied) c.reduce = ReduceOp::sum;
  } while (is_reduction(c.verb) && !supports(c.reduce, known_dtype(c.dtype).value()));
  const unsigned tensors = takes_a_list(c.verb) ? random() % 4 + 1 : 1;
  for (unsigned i = 0; i < tensors; ++i) c.shapes.push_back(random_sizes(random));
  if (c.verb == Verb::ragged || c.verb == Verb::all_to_all_single || c.verb == Verb::scatter_coalesced) {
    for (Sizes& sizes : c.shapes) sizes.insert(sizes.begin(), static_cast<std::int64_t>(random() % 3 + 1));
  }
  const bool may_overlap = is_in_place(c.verb) && c.verb != Verb::premultiplied && !is_scan(c.verb);
  if (may_overlap && tensors > 1 && random() % 2 == 0) {
    c.lists = static_cast<Lists>(random() % 3 + 1);
    const auto side = static_cast<std::int64_t>(random() % 5 + 1);
    const auto length = static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 40'000 : 200) + 1);
    if (c.lists == Lists::same) c.shapes.assign(tensors, random() % 2 == 0 ? Sizes{length} : c.shapes[0]);
    if (c.lists == Lists::windows) c.shapes.assign(tensors, {length});
    if (c.lists == Lists::turned) c.shapes.assign(2, {side, side});
  }
  if (may_alias(c.verb) && random() % 3 == 0) {
    c.alias = static_cast<Alias>(random() % 2 + 1);
    c.shapes.resize(1);
  }
  if (random() % 4 == 0) c.wrong = static_cast<Wrong>(random() % 9 + 1);
  return c;
}

inline Look look_of(const Case& c, int rank, bool is_input, std::size_t index) {
  std::mt19937 random(c.seed * 31 + static_cast<unsigned>(rank) * 7 + (is_input ? 1000U : 0U) +
                      static_cast<unsigned>(index) * 131);
  random.discard(3);
  const bool only_read = (is_input && !is_in_place(c.verb)) || (c.verb == Verb::broadcast && rank == c.root);
  Look look = zoo::random_look(random, c.dtype, only_read);
  if (c.verb == Verb::premultiplied) look.place = look.place == Place::odd ? Place::plain : look.place;
  if (c.lists != Lists::apart && look.strides == Strides::expanded) look.strides = Strides::in_order;
  if ((c.adorned >> rank & 1U) == 0) return {};
  if (!c.features.places) look.place = Place::plain;
  if (!c.features.strides) look.strides = Strides::in_order;
  if (!c.features.bits) look.bits = Bits::none;
  if (!c.features.requires_grad) look.requires_grad = false;
  return look;
}

inline Sizes with_rows(std::int64_t rows, const Sizes& shape) {
  Sizes sizes{rows};
  sizes.insert(sizes.end(), shape.begin() + 1, shape.end());
  return sizes;
}

// Of all_to_all: what one rank sends to another. Pairs have sizes of their own, unless inputs are outputs.
inline Sizes pair_sizes(const Case& c, int from, int to) {
  Sizes sizes = c.shapes[0];
  sizes.insert(sizes.begin(), c.alias == Alias::none ? (from * 2 + to) % 3 : 2);
  return sizes;
}

// What one rank gives.
inline std::vector<Sizes> given_sizes(const Case& c, int rank) {
  const Sizes& first = c.shapes[0];
  std::vector<Sizes> sizes;
  switch (c.verb) {
    case Verb::scatter: return std::vector<Sizes>(rank == c.root ? static_cast<std::size_t>(c.ranks) : 0, first);
    case Verb::reduce_scatter:
      for (int to = 0; to < c.ranks; ++to) sizes.insert(sizes.end(), c.shapes.begin(), c.shapes.end());
      return sizes;
    case Verb::all_to_all:
      for (int to = 0; to < c.ranks; ++to) sizes.push_back(pair_sizes(c, rank, to));
      return sizes;
    case Verb::all_to_all_single: return {with_rows(first[0] * c.ranks, first)};
    case Verb::ragged: return {with_rows((first[0] + rank) % 3, first)};
    case Verb::scatter_coalesced:
      for (const Sizes& shape : c.shapes) sizes.push_back(with_rows(shape[0] * c.ranks, shape));
      return sizes;
    default: return c.shapes;
  }
}

inline std::vector<at::Tensor> given(const Case& c, int rank) {
  std::vector<at::Tensor> all;
  const std::vector<Sizes> sizes = given_sizes(c, rank);
  const std::int64_t scale = is_reduction(c.verb) && c.reduce == ReduceOp::avg ? 12 : 1;
  if (c.lists == Lists::windows) {
    const auto count = static_cast<std::int64_t>(sizes.size());
    const at::Tensor whole = numbers({sizes[0][0] + count - 1}, c.dtype, rank, scale);
    for (std::int64_t i = 0; i < count; ++i) all.push_back(whole.narrow(0, i, sizes[0][0]));
    return all;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t seed = c.lists == Lists::apart ? rank + 5 * static_cast<std::int64_t>(i) : rank;
    at::Tensor content = numbers(sizes[i], c.dtype, seed, scale);
    if (c.lists == Lists::turned && i == 1) content = content.t();
    const bool expands = c.alias == Alias::none && look_of(c, rank, true, i).strides == Strides::expanded;
    if (expands && content.dim() > 0 && content.size(0) > 0) content = content.narrow(0, 0, 1).expand(sizes[i]);
    all.push_back(content);
  }
  return all;
}

// What this rank gets, from what all of them give.
inline std::vector<at::Tensor> wanted(const Case& c, int rank, const std::vector<std::vector<at::Tensor>>& all) {
  const auto me = static_cast<std::size_t>(rank), n = static_cast<std::size_t>(c.ranks), k = c.shapes.size();
  const auto root = static_cast<std::size_t>(c.root);
  std::vector<at::Tensor> results;
  const auto reduced = [&](std::size_t index) {
    std::vector<at::Tensor> operands;
    for (const auto& of_rank : all) operands.push_back(of_rank[index]);
    return expected_reduction(operands, c.reduce);
  };
  switch (c.verb) {
    case Verb::all_reduce_one:
    case Verb::all_reduce:
    case Verb::reduce:
    case Verb::premultiplied:
      for (std::size_t i = 0; i < k && (c.verb != Verb::reduce || me == root); ++i) results.push_back(reduced(i));
      return results;
    case Verb::scan:
    case Verb::exclusive_scan:
      for (std::size_t i = 0; i < k; ++i) {
        std::vector<at::Tensor> operands;
        for (std::size_t r = 0; r < (c.verb == Verb::scan ? me + 1 : me); ++r) operands.push_back(all[r][i]);
        results.push_back(operands.empty() ? identity_like(all[0][i], c.reduce)
                                           : expected_reduction(operands, c.reduce));
      }
      return results;
    case Verb::broadcast:
    case Verb::root_object: return all[root];
    case Verb::scatter: return {all[root][me]};
    case Verb::message:
    case Verb::batch: return all[(me + n - 1) % n];
    case Verb::reduce_scatter:
      for (std::size_t i = 0; i < k; ++i) results.push_back(reduced(me * k + i));
      return results;
    case Verb::scatter_coalesced:
      for (std::size_t i = 0; i < k; ++i) results.push_back(reduced(i).chunk(c.ranks, 0)[me]);
      return results;
    case Verb::all_to_all:
      for (const auto& of_rank : all) results.push_back(of_rank[me]);
      return results;
    case Verb::all_to_all_single:
      for (const auto& of_rank : all) results.push_back(of_rank[0].chunk(c.ranks, 0)[me]);
      return {at::cat(results)};
    case Verb::gather:
    case Verb::gather_into:
      if (me != root) return {};
      [[fallthrough]];
    default:
      for (const auto& of_rank : all) results.insert(results.end(), of_rank.begin(), of_rank.end());
      return results;
  }
}

inline std::string text_of(const Case& c) {
  std::ostringstream out;
  out << "seed " << c.seed << ", " << c.ranks << " ranks over " << (c.over == Over::arena ? "the arena" : "links")
      << ": " << kVerbs[static_cast<std::size_t>(c.verb)]
      << (c.form == Form::async       ? ", async"
          : c.form == Form::in_caller ? ", async in the caller"
                                      : "");
  if (is_reduction(c.verb)) out << ", " << to_string(c.reduce);
  out << ", " << c.dtype << ", root " << c.root << ", shapes";
  for (const Sizes& shape : c.shapes) out << ' ' << at::IntArrayRef(shape);
  static const char* const kLists[] = {"apart", "same", "windows", "turned"};
  static const char* const kAliases[] = {"none", "own part", "other part"};
  out << ", lists " << kLists[static_cast<int>(c.lists)] << ", alias " << kAliases[static_cast<int>(c.alias)]
      << ", wrong " << kWrongs[static_cast<int>(c.wrong)];
  for (int rank = 0; rank < c.ranks; ++rank) {
    for (const bool is_input : {true, false}) {
      const Look look = look_of(c, rank, is_input, 0);
      out << "\n  rank " << rank << (is_input ? " input" : " output") << " 0: place " << static_cast<int>(look.place)
          << ", strides " << static_cast<int>(look.strides) << ", bits " << static_cast<int>(look.bits)
          << (look.requires_grad ? ", requires grad" : "");
    }
  }
  return out.str();
}

}  // namespace lockstep::testing
