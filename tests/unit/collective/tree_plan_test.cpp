#include "lockstep/comm/collective/tree_plan.h"

#include <doctest/doctest.h>

#include <bit>
#include <string>
#include <vector>

namespace tree_plan_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr OpKind kKinds[] = {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast, OpKind::all_gather,
                             OpKind::barrier};

// Every rank alone, in nodes of two to five (the last may be smaller), in uneven ones, and in nodes whose ranks do not
// follow each other.
std::vector<Topology> topologies() {
  std::vector<Topology> all;
  for (int size = 1; size <= 17; ++size) {
    all.emplace_back(size);
    for (int per_node = 2; per_node <= 5; ++per_node) {
      std::vector<int> node_of, uneven, scattered;
      for (int rank = 0; rank < size; ++rank) {
        node_of.push_back(rank / per_node);
        uneven.push_back(std::bit_width(static_cast<unsigned>(rank + per_node)));
        scattered.push_back(rank % per_node);
      }
      all.emplace_back(node_of);
      all.emplace_back(uneven);
      all.emplace_back(scattered);
    }
  }
  return all;
}

std::size_t row_bytes(const Collective& c, int rank) {
  const std::size_t bytes = c.kind == OpKind::broadcast && rank != c.root ? 0 : c.count * 4;
  return bytes == 0 ? 1 : bytes;
}

// One rank's bundle holds as many bytes of a letter as the rank of that letter has in its row.
char letter(int rank) { return static_cast<char>('a' + rank); }

class Tree {
 public:
  Tree(const Collective& c, const Topology& topology) : topology_(topology), plans_(size()), bundles_(size()) {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      plan_tree(c, static_cast<int>(rank), topology, plans_[rank]);
      bundles_[rank] = std::string(row_bytes(c, static_cast<int>(rank)), letter(static_cast<int>(rank)));
      joined_.push_back(0);
      sent_.emplace_back(size());
    }
    while (step()) {
    }
  }

  std::size_t size() const { return static_cast<std::size_t>(topology_.size()); }
  const TreePlan& plan(int rank) const { return plans_[static_cast<std::size_t>(rank)]; }
  const std::string& bundle(int rank) const { return bundles_[static_cast<std::size_t>(rank)]; }
  bool is_complete(int rank) const {
    return joined_[static_cast<std::size_t>(rank)] == plan(rank).receive.size() &&
           (rank != plan(rank).leader || bundle(rank).size() == plan(rank).bundle_bytes);
  }

 private:
  // Sends what can be sent, then lets every rank take what is next.
  bool step() {
    bool moved = false;
    for (std::size_t from = 0; from < size(); ++from) {
      const auto post = [&](const TreeMessage& each) {
        std::string& message = sent_[from][static_cast<std::size_t>(each.peer)];
        if (message.empty() && bundles_[from].size() >= each.bytes) message = bundles_[from].substr(0, each.bytes);
      };
      for (const TreeMessage& each : plans_[from].send) post(each);
      if (is_complete(static_cast<int>(from))) {
        for (const TreeMessage& each : plans_[from].answers) post(each);
      }
    }
    for (std::size_t to = 0; to < size(); ++to) {
      std::size_t& joined = joined_[to];
      for (; joined < plans_[to].receive.size(); ++joined) {
        const TreeMessage& each = plans_[to].receive[joined];
        const std::string& message = sent_[static_cast<std::size_t>(each.peer)][to];
        if (message.empty()) break;
        CHECK(message.size() == each.bytes);
        bundles_[to] = static_cast<int>(to) == plans_[to].leader ? bundles_[to] + message : message;
        moved = true;
      }
    }
    return moved;
  }

  const Topology& topology_;
  std::vector<TreePlan> plans_;
  std::vector<std::string> bundles_;
  std::vector<std::size_t> joined_;
  std::vector<std::vector<std::string>> sent_;
};

template <class Check>
void for_all(Check check) {
  for (const Topology& topology : topologies()) {
    for (const OpKind kind : kKinds) {
      for (const std::uint64_t count : {0, 3}) {
        if (kind == OpKind::barrier && count != 0) continue;
        const bool rooted = kind == OpKind::broadcast || kind == OpKind::reduce;
        for (int root = 0; root < (rooted ? topology.size() : 1); ++root) {
          CAPTURE(to_string(kind));
          CAPTURE(count);
          CAPTURE(root);
          CAPTURE(topology.size());
          CAPTURE(topology.nodes());
          check(Collective{.kind = kind, .dtype = DType::f32, .root = root, .count = count}, topology);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("in a tree every leader gets every rank's row, where the plan says, and every other rank its answer") {
  for_all([](const Collective& c, const Topology& topology) {
    const Tree tree(c, topology);
    for (int rank = 0; rank < topology.size(); ++rank) {
      REQUIRE(tree.is_complete(rank));
      if (rank != tree.plan(rank).leader && answers_with_result(c.kind)) {
        const bool is_wanted = c.kind == OpKind::all_reduce || rank == c.root;
        CHECK(tree.bundle(rank).size() == (is_wanted ? row_bytes(c, rank) : 1));
        continue;
      }
      REQUIRE(tree.bundle(rank).size() == tree.plan(rank).bundle_bytes);
      for (int from = 0; from < topology.size(); ++from) {
        const std::string row(row_bytes(c, from), letter(from));
        CHECK(tree.bundle(rank).compare(tree.plan(rank).row_at[static_cast<std::size_t>(from)], row.size(), row) == 0);
      }
    }
  });
}

TEST_CASE("what one rank sends in a tree the other expects, and no two messages take the same way") {
  for_all([](const Collective& c, const Topology& topology) {
    const auto n = static_cast<std::size_t>(topology.size());
    std::vector<std::size_t> sent(n * n), expected(n * n);
    for (std::size_t rank = 0; rank < n; ++rank) {
      TreePlan plan;
      plan_tree(c, static_cast<int>(rank), topology, plan);
      const auto note = [&](std::size_t& place, std::size_t bytes) {
        CHECK(place == 0);
        CHECK(bytes != 0);
        place = bytes;
      };
      for (const TreeMessage& each : plan.send) note(sent[rank * n + static_cast<std::size_t>(each.peer)], each.bytes);
      for (const TreeMessage& each : plan.answers) {
        note(sent[rank * n + static_cast<std::size_t>(each.peer)], each.bytes);
      }
      for (const TreeMessage& each : plan.receive) {
        note(expected[static_cast<std::size_t>(each.peer) * n + rank], each.bytes);
      }
    }
    CHECK(sent == expected);
  });
}

TEST_CASE("in a tree a node sends and receives as many messages as its number has binary digits") {
  for (const Topology& topology : topologies()) {
    const auto rounds = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(topology.nodes() - 1)));
    for (int rank = 0; rank < topology.size(); ++rank) {
      TreePlan plan;
      plan_tree({.kind = OpKind::barrier}, rank, topology, plan);
      const bool is_leader = rank == topology.first(topology.node(rank));
      const auto others = static_cast<std::size_t>(topology.ranks_on(topology.node(rank)) - 1);
      CHECK(plan.send.size() + plan.answers.size() == (is_leader ? rounds + others : 1));
      CHECK(plan.receive.size() == (is_leader ? rounds + others : 1));
    }
  }
}

}  // namespace tree_plan_test
