// Engines of in-process ranks, and operands whose values any rank can compute.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "lockstep/comm/collective/arena_engine.h"
#include "lockstep/comm/collective/link_engine.h"
#include "lockstep/comm/collective/reduce.h"
#include "tests/support/arena_meshes.h"
#include "tests/support/shared_meshes.h"

namespace lockstep::testing {

using namespace internal;

using namespace std::chrono_literals;

inline constexpr DType kReducible[] = {DType::f32, DType::f64,  DType::f16, DType::bf16, DType::i32,
                                       DType::i64, DType::u8,   DType::i8,  DType::i16,  DType::boolean,
                                       DType::c64, DType::c128, DType::u16, DType::u32,  DType::u64};
inline constexpr ReduceOp kReductions[] = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::product, ReduceOp::min,
                                           ReduceOp::max, ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

using Engines = std::vector<std::unique_ptr<Engine>>;
using Buffer = std::vector<std::byte>;

inline Deadline soon() { return Deadline::after(20s); }

// links: each rank on a node of its own. part: the same, over TCP connections that were made for a larger group. nodes:
// two ranks to a node. trees: the same, and what is small goes in a tree.
enum class Over { arena, links, part, nodes, trees };
// Operands that lie in the arena, so that the in-place way is taken, or in ordinary memory.
enum class Place { ordinary, arena };

struct Kind {
  const char* name;
  Over over;
  Place place;
};
inline constexpr Kind kKinds[] = {{"arena, ordinary memory", Over::arena, Place::ordinary},
                                  {"arena, in place", Over::arena, Place::arena},
                                  {"links", Over::links, Place::ordinary},
                                  {"part of a larger group", Over::part, Place::ordinary},
                                  {"nodes", Over::nodes, Place::ordinary},
                                  {"trees", Over::trees, Place::ordinary}};
inline constexpr Kind kTransports[] = {{"arena", Over::arena, Place::ordinary},
                                       {"links", Over::links, Place::ordinary},
                                       {"part of a larger group", Over::part, Place::ordinary},
                                       {"part of a larger group", Over::part, Place::ordinary},
                                       {"nodes", Over::nodes, Place::ordinary},
                                       {"trees", Over::trees, Place::ordinary}};

// Neighbouring ranks share a node.
inline Topology nodes_of(int ranks, int ranks_per_node) {
  std::vector<int> node_of;
  for (int rank = 0; rank < ranks; ++rank) node_of.push_back(rank / ranks_per_node);
  return Topology(node_of);
}

struct EngineOptions {
  int ranks_per_node = 2;  // of Over::nodes and Over::trees
  std::size_t ring_bytes = std::size_t{64} << 10;
  LinkTuning tuning = {};
};

inline Engines make_engines(int ranks, Over over = Over::arena, const EngineOptions& options = {}) {
  Engines engines;
  if (over != Over::arena) {
    const bool is_apart = over == Over::links || over == Over::part;
    const Topology topology = nodes_of(ranks, is_apart ? 1 : options.ranks_per_node);
    LinkTuning tuning = options.tuning;
    tuning.tree_ranks = tuning.tree_lone_ranks = over == Over::trees ? 2 : ranks + 1;
    tuning.announce_after = 2ms;
    auto meshes = over == Over::part ? make_part_meshes(ranks) : make_arena_meshes(ranks, options.ring_bytes);
    for (auto& mesh : meshes) {
      engines.push_back(std::make_unique<LinkEngine>(std::move(mesh), 0, topology, tuning));
    }
    return engines;
  }
  // Room for a block of every size class up to what tests allocate, which the heap keeps; used as it is touched.
  for (auto& arena : make_local_arenas(ranks, {.segment_bytes = 192 << 20})) {
    engines.push_back(std::make_unique<ArenaEngine>(std::move(arena)));
  }
  return engines;
}

// An operand of one rank: filled with small numbers that depend on rank and position.
class Operand {
 public:
  Operand(Engine& engine, Place place, DType dtype, std::size_t count, int seed) : bytes_(count * element_size(dtype)) {
    if (place == Place::arena) {
      heap_ = engine.heap();
      data_ = static_cast<std::byte*>(heap_->allocate(std::max<std::size_t>(bytes_, 1)));
      if (data_ == nullptr) throw std::runtime_error("the segment has no room for an operand");
    } else {
      own_.resize(std::max<std::size_t>(bytes_, 1));
      data_ = own_.data();
    }
    fill(dtype, count, seed);
  }
  ~Operand() {
    if (heap_) heap_->deallocate(data_);
  }
  Operand(const Operand&) = delete;

  Segment segment() const { return {data_, bytes_}; }
  Buffer copy() const {
    Buffer copied(bytes_);
    std::copy_n(data_, bytes_, copied.data());
    return copied;
  }

 private:
  void fill(DType dtype, std::size_t count, int seed) {
    for (std::size_t i = 0; i < count; ++i) {
      const int value = static_cast<int>((i * 7 + static_cast<std::size_t>(seed) * 13) % 11) + 1;
      std::byte* at = data_ + i * element_size(dtype);
      const auto put = [&](auto v) { std::memcpy(at, &v, sizeof v); };
      const float real = static_cast<float>(value) * 0.375F;
      std::uint32_t bits;
      std::memcpy(&bits, &real, 4);
      switch (dtype) {
        case DType::f32: put(real); break;
        case DType::f64: put(static_cast<double>(value) / 3); break;
        case DType::bf16: put(static_cast<std::uint16_t>(bits >> 16)); break;
        case DType::f16: put(static_cast<std::uint16_t>(0x3800 + value * 16)); break;
        case DType::i32: put(value); break;
        case DType::i64: put(static_cast<std::int64_t>(value)); break;
        case DType::u8:
        case DType::i8: put(static_cast<std::uint8_t>(value)); break;
        case DType::i16:
        case DType::u16: put(static_cast<std::int16_t>(value * 1000)); break;
        case DType::u32: put(static_cast<std::uint32_t>(value) << 29); break;
        case DType::u64: put(static_cast<std::uint64_t>(value) << 61); break;
        case DType::boolean: put(static_cast<std::uint8_t>(value % 2)); break;
        case DType::c64: put(std::array<float, 2>{real, -real / 2}); break;
        case DType::c128: put(std::array<double, 2>{value / 3.0, value / 7.0}); break;
        case DType::opaque: put(static_cast<std::uint8_t>(value * 17)); break;
      }
    }
  }

  std::size_t bytes_;
  std::shared_ptr<ArenaHeap> heap_;
  Buffer own_;
  std::byte* data_ = nullptr;
};

inline Buffer reduced(const std::vector<Buffer>& rows, DType dtype, ReduceOp op) {
  Buffer result(rows[0].size());
  std::vector<const std::byte*> inputs;
  for (const Buffer& row : rows) inputs.push_back(row.data());
  std::byte* target = result.data();
  reduce_rows({&target, 1}, inputs, result.size() / element_size(dtype), dtype, op, static_cast<int>(rows.size()));
  return result;
}

// What is reduced of no rows.
inline Buffer identity(std::size_t count, DType dtype, ReduceOp op) {
  Buffer result(count * element_size(dtype));
  std::byte* target = result.data();
  reduce_rows({&target, 1}, {}, count, dtype, op);
  return result;
}

}  // namespace lockstep::testing
