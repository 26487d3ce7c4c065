// Random tensors through every call of a group, against what plain torch makes of them; and tensors that are refused
// before anything is sent, after which the group goes on. LOCKSTEP_TEST_CASES asks for more cases.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/derived.h"
#include "lockstep/comm/group/objects.h"
#include "tests/unit/group/tensor_zoo_case.h"

namespace tensor_zoo_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

int cases_of_each_group() {
  const char* text = std::getenv("LOCKSTEP_TEST_CASES");
  const int cases = text == nullptr ? 0 : std::atoi(text);
  return cases > 0 ? cases / 8 + 1 : 300;
}

bool is_only_for_writing(Wrong wrong) {
  return wrong == Wrong::expanded || wrong == Wrong::folded || wrong == Wrong::overlapping;
}

using Tensors = std::vector<at::Tensor>;

// One rank's tensors of a call.
struct Hand {
  std::vector<Specimen> specimens;  // keep what the tensors borrow
  Tensors inputs, outputs;
};

Tensors tensors_of(const std::vector<Specimen>& specimens, std::size_t begin, std::size_t end) {
  Tensors tensors;
  for (std::size_t i = begin; i < end; ++i) tensors.push_back(specimens[i].tensor);
  return tensors;
}

// The sizes of what this rank has to bring for its results; nothing for calls that return them.
std::vector<Sizes> output_sizes(const Case& c, const Tensors& results) {
  const bool returns = c.verb == Verb::all_gather || c.verb == Verb::gather || c.verb == Verb::ragged ||
                       c.verb == Verb::gather_coalesced || c.verb == Verb::all_objects || c.verb == Verb::root_object;
  std::vector<Sizes> sizes;
  for (std::size_t i = 0; i < results.size() && !returns; ++i) sizes.push_back(results[i].sizes().vec());
  return sizes;
}

// All outputs or inputs are parts of one tensor, and the other side is one of them, or the same.
Hand aliased_hand(const ProcessGroup& group, const Case& c, const Tensors& mine) {
  Hand hand;
  Sizes sizes = c.verb == Verb::all_to_all ? pair_sizes(c, 0, 0) : c.shapes[0];
  sizes.insert(sizes.begin(), c.ranks);
  const at::Tensor base = c.seed % 2 == 0 ? group.empty(sizes, c.dtype) : at::empty(sizes, c.dtype);
  const bool many_inputs = c.verb == Verb::scatter || c.verb == Verb::reduce_scatter || c.verb == Verb::all_to_all;
  const bool many_outputs =
      c.verb == Verb::all_gather_into || c.verb == Verb::gather_into || c.verb == Verb::all_to_all;
  const at::Tensor one = base[(group.rank() + (c.alias == Alias::own_part ? 0 : 1)) % c.ranks];
  const bool is_root = group.rank() == c.root;
  if (many_inputs && (c.verb != Verb::scatter || is_root)) hand.inputs = base.unbind(0);
  if (many_outputs && (c.verb != Verb::gather_into || is_root)) hand.outputs = base.unbind(0);
  if (!many_inputs) hand.inputs = {one};
  if (!many_outputs) hand.outputs = {one};
  for (std::size_t i = 0; i < mine.size(); ++i) hand.inputs[i].copy_(mine[i]);
  return hand;
}

Hand hand_of(const ProcessGroup& group, const Case& c, const Tensors& mine, const Tensors& results) {
  if (c.alias != Alias::none) return aliased_hand(group, c, mine);
  Hand hand;
  const int rank = group.rank();
  if (c.lists != Lists::apart) {
    at::Tensor whole = mine[0];
    if (c.lists == Lists::windows) {
      whole = at::cat({mine[0].narrow(0, 0, 1).expand({0}), mine[0]});
      for (std::size_t i = 1; i < mine.size(); ++i) whole = at::cat({whole, mine[i].narrow(0, mine[i].size(0) - 1, 1)});
    }
    hand.specimens.push_back(specimen_of(group, whole, look_of(c, rank, true, 0)));
    const at::Tensor& tensor = hand.specimens[0].tensor;
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (c.lists == Lists::same) hand.outputs.push_back(tensor);
      if (c.lists == Lists::turned) hand.outputs.push_back(i == 0 ? tensor : tensor.t());
      if (c.lists == Lists::windows) {
        hand.outputs.push_back(tensor.narrow(0, static_cast<std::int64_t>(i), mine[0].size(0)));
      }
    }
    return hand;
  }
  for (std::size_t i = 0; i < mine.size(); ++i) {
    hand.specimens.push_back(specimen_of(group, mine[i], look_of(c, rank, true, i)));
  }
  if (is_in_place(c.verb)) {
    hand.outputs = tensors_of(hand.specimens, 0, mine.size());
    return hand;
  }
  hand.inputs = tensors_of(hand.specimens, 0, mine.size());
  const std::vector<Sizes> sizes = output_sizes(c, results);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    hand.specimens.push_back(specimen_of(group, numbers(sizes[i], c.dtype, 99), look_of(c, rank, false, i)));
  }
  hand.outputs = tensors_of(hand.specimens, mine.size(), hand.specimens.size());
  return hand;
}

void call_async(const ProcessGroup& group, const Case& c, const Tensors& outputs, const Tensors& inputs,
                const CallOptions& options) {
  const auto work = [&] {
    switch (c.verb) {
      case Verb::all_reduce_one:
      case Verb::all_reduce: return group.all_reduce_async(outputs, c.reduce, options);
      case Verb::reduce: return group.reduce_async(outputs, c.root, c.reduce, options);
      case Verb::scan: return group.scan_async(outputs, c.reduce, options);
      case Verb::exclusive_scan: return group.exclusive_scan_async(outputs, c.reduce, options);
      case Verb::broadcast: return group.broadcast_async(outputs, c.root, options);
      case Verb::all_gather_into: return group.all_gather_into_async(outputs, inputs, options);
      case Verb::gather_into: return group.gather_into_async(outputs, inputs.at(0), c.root, options);
      case Verb::scatter: return group.scatter_async(outputs.at(0), inputs, c.root, options);
      case Verb::reduce_scatter: return group.reduce_scatter_async(outputs, inputs, c.reduce, options);
      default: return group.all_to_all_async(outputs, inputs, options);
    }
  }();
  work.wait(Deadline::after(20s));
}

void exchange_messages(const ProcessGroup& group, const Case& c, const Tensors& outputs, const Tensors& inputs) {
  using Kind = MessageCall::Kind;
  const int next = (group.rank() + 1) % c.ranks, before = (group.rank() + c.ranks - 1) % c.ranks;
  std::vector<Work> works;
  if (c.verb == Verb::batch) {
    works = group.batch_isend_irecv({{Kind::receive, outputs.at(0), before, 3}, {Kind::send, inputs.at(0), next, 3}});
  } else {
    // The one that may be refused comes first, so that the other is not left waiting.
    if (is_only_for_writing(c.wrong)) works.push_back(group.recv_async(outputs.at(0), before, 3));
    works.push_back(group.send_async(inputs.at(0), next, 3));
    if (!is_only_for_writing(c.wrong)) works.push_back(group.recv_async(outputs.at(0), before, 3));
  }
  for (const Work& work : works) work.wait(Deadline::after(20s));
}

// What the call returns; what it writes, if it returns nothing.
Tensors call(const ProcessGroup& group, const Case& c, const Tensors& outputs, const Tensors& inputs) {
  const CallOptions options{.timeout = 20s, .in_caller = c.form == Form::in_caller};
  if (c.verb == Verb::message || c.verb == Verb::batch) {
    exchange_messages(group, c, outputs, inputs);
    return outputs;
  }
  if (c.form != Form::blocking) {
    call_async(group, c, outputs, inputs, options);
    return c.verb == Verb::reduce && group.rank() != c.root ? Tensors() : outputs;
  }
  switch (c.verb) {
    case Verb::all_reduce_one: group.all_reduce(outputs.at(0), c.reduce, options); break;
    case Verb::all_reduce: group.all_reduce(outputs, c.reduce, options); break;
    case Verb::reduce:
      group.reduce(outputs, c.root, c.reduce, options);
      return group.rank() == c.root ? outputs : Tensors();
    case Verb::scan: group.scan(outputs, c.reduce, options); break;
    case Verb::exclusive_scan: group.exclusive_scan(outputs, c.reduce, options); break;
    case Verb::broadcast: group.broadcast(outputs, c.root, options); break;
    case Verb::all_gather: return group.all_gather(inputs.at(0), options);
    case Verb::all_gather_into: group.all_gather_into(outputs, inputs, options); break;
    case Verb::gather: return group.gather(inputs.at(0), c.root, options);
    case Verb::gather_into: group.gather_into(outputs, inputs.at(0), c.root, options); break;
    case Verb::scatter: group.scatter(outputs.at(0), inputs, c.root, options); break;
    case Verb::reduce_scatter: group.reduce_scatter(outputs, inputs, c.reduce, options); break;
    case Verb::all_to_all: group.all_to_all(outputs, inputs, options); break;
    case Verb::all_to_all_single: group.all_to_all_single(outputs.at(0), inputs.at(0), {}, {}, options); break;
    case Verb::ragged: return group.all_gather_v(inputs.at(0), options);
    case Verb::scatter_coalesced: group.reduce_scatter_coalesced(outputs, inputs, c.reduce, options); break;
    case Verb::premultiplied: group.all_reduce_premul_sum(outputs, at::ones({}, c.dtype), options); break;
    case Verb::all_objects: return group.all_gather_object(inputs.at(0));
    case Verb::root_object: return {group.broadcast_object(inputs.at(0), c.root)};
    case Verb::gather_coalesced: {
      Tensors joined;
      for (const Tensors& each : group.all_gather_coalesced(inputs, options)) {
        joined.insert(joined.end(), each.begin(), each.end());
      }
      return joined;
    }
    default: break;
  }
  return outputs;
}

// Tensors that no call takes, or none that writes to them.
at::Tensor wrong_tensor(const Case& c, const at::Tensor& right) {
  const at::TensorOptions options = at::TensorOptions().dtype(c.dtype);
  switch (c.wrong) {
    case Wrong::undefined: return {};
    case Wrong::sparse: return at::sparse_coo_tensor({2}, options);
    case Wrong::meta: return at::empty(right.sizes(), options.device(at::kMeta));
    case Wrong::quantized: return at::quantize_per_tensor(at::ones({2}), 0.5, 0, at::kQInt8);
    case Wrong::nested: return at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})});
    case Wrong::opaque: return at::ones({2, 2}).to_mkldnn();
    case Wrong::folded: {
      const Sizes ones(static_cast<std::size_t>(right.dim()), 1);
      std::int64_t length = 1;
      for (const std::int64_t size : right.sizes()) length += size;
      const at::Tensor folded = at::empty({length}, options).as_strided(right.sizes(), ones);
      if (!folded.is_contiguous()) return folded;  // of more than one dimension
      [[fallthrough]];
    }
    default: return at::empty({}, options).expand(right.sizes());
  }
}

// A call with something wrong, on this rank alone: nobody else hears of it.
void be_refused(const ProcessGroup& group, const Case& c, const Tensors& outputs, const Tensors& inputs) {
  const bool writes = c.verb != Verb::reduce && c.verb != Verb::broadcast && c.verb != Verb::premultiplied;
  Tensors wrong_outputs = outputs, wrong_inputs = inputs;
  if (c.verb == Verb::root_object && group.rank() != c.root) return;  // what others give does not matter
  if (is_only_for_writing(c.wrong) && (!writes || outputs.empty())) return;
  Tensors& spoiled = !is_only_for_writing(c.wrong) && !inputs.empty() ? wrong_inputs : wrong_outputs;
  if (spoiled.empty()) return;
  const std::size_t index = c.seed / 3 % spoiled.size();
  if (is_only_for_writing(c.wrong) && spoiled[index].numel() < 2) return;
  if (c.wrong == Wrong::overlapping) {
    if (c.verb == Verb::scatter_coalesced) return;  // looks at the sizes first
    if (is_in_place(c.verb) || spoiled.size() < 2 || spoiled[0].numel() == 0 || spoiled[1].numel() == 0) return;
    spoiled[1] = spoiled[0];  // sizes need not fit: this is looked at first
  } else {
    spoiled[index] = wrong_tensor(c, spoiled[index]);
  }
  try {
    call(group, c, wrong_outputs, wrong_inputs);
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.kind() == ErrorKind::invalid_argument && text.find("tensor") != std::string::npos) return;
    throw std::runtime_error("refused in other words: " + text);
  }
  throw std::runtime_error("what is wrong is not refused");
}

void run_case(const ProcessGroup& group, const Case& c) {
  std::vector<Tensors> all;
  for (int rank = 0; rank < c.ranks; ++rank) all.push_back(given(c, rank));
  const Tensors results = wanted(c, group.rank(), all);
  const Hand hand = hand_of(group, c, all[static_cast<std::size_t>(group.rank())], results);
  const std::string me = "rank " + std::to_string(group.rank());
  try {
    if (c.wrong != Wrong::nothing && (c.seed >> group.rank()) % 2 == 0) be_refused(group, c, hand.outputs, hand.inputs);
    const Tensors got = call(group, c, hand.outputs, hand.inputs);
    if (got.size() != results.size()) throw std::runtime_error("a wrong number of results");
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (same_values(got[i], results[i], is_reduction(c.verb) && c.reduce == ReduceOp::avg)) continue;
      throw std::runtime_error("result " + std::to_string(i) + " is wrong");
    }
    for (const Specimen& each : hand.specimens) {
      if (!each.twin.defined() || same_values(each.twin, each.twin_values)) continue;
      throw std::runtime_error("a tensor that shared memory was written");
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(me + ": " + error.what());
  }
}

// What the case fails with, in a group of its own; of several ranks the first that was not merely told by another.
std::optional<std::string> failure_of(const Case& c) {
  std::optional<std::string> text;
  for (const auto& error :
       run_group(c.ranks, c.over, [&](const ProcessGroup& group) { run_case(group, c); }, {.timeout = 5s})) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& failure) {
      const std::string said = failure.what();
      if (!text || text->find("another rank failed") != std::string::npos) text = said;
    }
  }
  return text;
}

std::vector<Case> simpler(const Case& c) {
  std::vector<Case> all;
  const auto propose = [&](auto change) {
    Case changed = c;
    change(changed);
    if (text_of(changed) != text_of(c)) all.push_back(changed);
  };
  propose([](Case& x) { x.wrong = Wrong::nothing; });
  propose([](Case& x) { x.alias = Alias::none; });
  propose([](Case& x) { x.form = Form::blocking; });
  if (c.lists == Lists::apart) propose([](Case& x) { x.shapes.resize(1); });
  if (c.lists != Lists::turned && c.shapes.size() > 2) propose([](Case& x) { x.shapes.resize(2); });
  propose([](Case& x) { x.features.places = false; });
  propose([](Case& x) { x.features.strides = false; });
  propose([](Case& x) { x.features.bits = false; });
  propose([](Case& x) { x.features.requires_grad = false; });
  for (int rank = 0; rank < c.ranks; ++rank) propose([&](Case& x) { x.adorned &= ~(1U << rank); });
  if (c.ranks > 1 && c.root < c.ranks - 1) propose([](Case& x) { --x.ranks; });
  if (c.ranks > 1 && c.root > 0) propose([](Case& x) { x.root = 0; });
  propose([](Case& x) {
    for (Sizes& shape : x.shapes) {
      for (std::int64_t& size : shape) size = std::min<std::int64_t>(size, 2);
    }
  });
  if (!is_reduction(c.verb) || supports(c.reduce, DType::f32)) propose([](Case& x) { x.dtype = at::kFloat; });
  return all;
}

Case shrunk(Case c) {
  for (bool found = true; found;) {
    found = false;
    for (const Case& candidate : simpler(c)) {
      if (!failure_of(candidate)) continue;
      c = candidate;
      found = true;
      break;
    }
  }
  return c;
}

void run_cases(Over over, int ranks, unsigned first_seed, int count) {
  std::vector<unsigned> reached(static_cast<std::size_t>(ranks));
  const auto errors = run_group(ranks, over, [&](const ProcessGroup& group) {
    for (unsigned i = 0; i < static_cast<unsigned>(count); ++i) {
      reached[static_cast<std::size_t>(group.rank())] = first_seed + i;
      run_case(group, random_case(first_seed + i, over, ranks));
    }
  });
  if (std::all_of(errors.begin(), errors.end(), [](const auto& error) { return error == nullptr; })) return;
  const auto [low, high] = std::minmax_element(reached.begin(), reached.end());
  for (unsigned seed = *low; seed <= *high; ++seed) {
    const Case c = random_case(seed, over, ranks);
    const auto failure = failure_of(c);
    if (!failure) continue;
    const Case smallest = shrunk(c);
    const std::string text = *failure + "\n" + text_of(c) + "\nshrunk: " + failure_of(smallest).value_or("passes now") +
                             "\n" + text_of(smallest);
    FAIL(text);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

// feature: C-01, C-02
TEST_CASE("tensors of every look through every call") {
  const char* only = std::getenv("LOCKSTEP_TEST_SEED");
  for (const Over over : {Over::arena, Over::links}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      CAPTURE(ranks);
      if (only != nullptr) {
        run_cases(over, ranks, static_cast<unsigned>(std::atoi(only)), 1);
      } else {
        run_cases(over, ranks, static_cast<unsigned>(ranks) * 1'000'000, cases_of_each_group());
      }
    }
  }
}

}  // namespace tensor_zoo_test
