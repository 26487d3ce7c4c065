#include "lockstep/comm/collective/exchange.h"

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/support/arena_meshes.h"
#include "tests/unit/collective/link_fixture.h"

namespace exchange_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr LinkTuning kTuning{
    .small_bytes = 512, .tree_ranks = 4, .tree_lone_ranks = 4, .chunk_bytes = 256, .window_chunks = 2};

// The exchanges of all ranks, which one thread drives.
class Group {
 public:
  explicit Group(const Topology& topology) : meshes_(make_arena_meshes(topology.size(), 300)) {
    for (auto& mesh : meshes_) exchanges_.push_back(std::make_unique<Exchange>(*mesh, topology, kTuning));
  }

  // Calls advance() on the ranks in any order until all are done. "" or what was wrong.
  std::string run(const Row& row, std::mt19937& random) {
    const std::size_t n = meshes_.size(), element = element_size(row.dtype);
    const OpTraits& op = traits_of(row.kind);
    const std::size_t parts = op.takes_parts() ? n : 1;
    std::vector<Buffer> operands;
    std::vector<Pieces> inputs, outputs;
    std::vector<Collective> calls;
    calls.reserve(n);  // exchanges refer to them
    for (std::size_t rank = 0; rank < n; ++rank) {
      operands.push_back(random_values(row.dtype, row.count * parts, random));
      inputs.emplace_back(op.is_in_place() ? Buffer() : operands.back(), element, 3, random);
      outputs.emplace_back(
          op.is_in_place() ? operands.back() : Buffer((op.gives_parts() ? n : 1) * row.count * element), element, 3,
          random);
    }
    for (std::size_t rank = 0; rank < n; ++rank) {
      calls.push_back({.kind = row.kind, .dtype = row.dtype, .root = row.root, .count = row.count});
      if (op.input != Extent::none) calls.back().input = inputs[rank].segments();
      if (op.output != Extent::none) calls.back().output = outputs[rank].segments();
      Signature signature = signature_of(calls.back(), sequence_, 0);
      signature.check = check_of(signature);
      exchanges_[rank]->begin(calls.back(), signature, Deadline::never());
    }
    ++sequence_;
    if (!drive(random)) return "no rank can go on";
    const Buffer reduced = op.reduces ? reduce_buffers(operands, row) : Buffer();
    for (std::size_t rank = 0; rank < n; ++rank) {
      const Buffer expected = expected_output(row, static_cast<int>(rank), operands, reduced);
      if (op.moves_data() && outputs[rank].content() != expected) return "wrong output on rank " + std::to_string(rank);
      if (!outputs[rank].gaps_untouched()) return "memory beside it changed on rank " + std::to_string(rank);
    }
    return "";
  }

 private:
  bool drive(std::mt19937& random) {
    std::vector<std::size_t> going;
    for (std::size_t rank = 0; rank < exchanges_.size(); ++rank) going.push_back(rank);
    while (!going.empty()) {
      std::ranges::shuffle(going, random);
      bool has_moved = false;
      std::erase_if(going, [&](std::size_t rank) {
        const Exchange::Progress progress = exchanges_[rank]->advance();
        has_moved = has_moved || progress != Exchange::Progress::idle;
        return progress == Exchange::Progress::done;
      });
      if (!has_moved) return false;
    }
    return true;
  }

  std::vector<std::unique_ptr<Mesh>> meshes_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::uint64_t sequence_ = 1;
};

}  // namespace

TEST_CASE("exchanges are driven by advance() alone, which never waits, on every route") {
  std::mt19937 random(3);
  const std::vector<Topology> topologies = {Topology(1),
                                            Topology(2),
                                            Topology(3),
                                            Topology(5),
                                            Topology({0, 0, 1}),
                                            Topology({0, 0, 1, 1}),
                                            Topology({0, 0, 0, 1, 1, 2}),
                                            Topology({0, 1, 0, 1})};
  for (const Topology& topology : topologies) {
    Group group(topology);
    for (const OpKind kind :
         {OpKind::all_reduce, OpKind::broadcast, OpKind::all_gather, OpKind::reduce_scatter, OpKind::barrier}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const std::size_t count : {0, 1, 100, 1000}) {
          if (kind == OpKind::barrier && count != 0) continue;
          const Row row{.kind = kind, .dtype = dtype, .root = topology.size() / 2, .count = count};
          INFO(to_string(kind) << " of " << count << " " << to_string(dtype) << ", " << topology.size() << " ranks on "
                               << topology.nodes() << " nodes");
          CHECK(group.run(row, random) == "");
        }
      }
    }
  }
}

}  // namespace exchange_test
