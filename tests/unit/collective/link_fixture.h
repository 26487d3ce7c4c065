// Helpers for tests of the LinkEngine: a collective as a table row, with its data, its expected result and memory in
// pieces.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/link_engine.h"
#include "lockstep/comm/collective/reduce.h"
#include "tests/support/arena_meshes.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

using namespace internal;

using Engines = std::vector<std::unique_ptr<Engine>>;
using Buffer = std::vector<std::byte>;

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

inline Engines make_link_engines(std::vector<std::unique_ptr<Mesh>> meshes, const LinkTuning& tuning = {}) {
  Engines engines;
  for (auto& mesh : meshes) engines.push_back(std::make_unique<LinkEngine>(std::move(mesh), 7, tuning));
  return engines;
}

struct Row {
  OpKind kind = OpKind::all_reduce;
  DType dtype = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
  std::size_t count = 0;
};

// Finite numbers of moderate size, so that float sums round and nothing overflows.
inline Buffer random_values(DType dtype, std::size_t count, std::mt19937& random) {
  Buffer values(count * element_size(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = values.data() + i * element_size(dtype);
    const auto put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
    const std::uint32_t bits = random();
    const double real = static_cast<double>(bits) / 4e9 - 0.5;
    switch (dtype) {
      case DType::f32: put(static_cast<float>(real)); break;
      case DType::f64: put(real); break;
      case DType::f16: put(static_cast<std::uint16_t>(0x3800 | (bits & 0x83FF))); break;
      case DType::bf16: put(static_cast<std::uint16_t>(0x3F00 | (bits & 0x807F))); break;
      case DType::i32: put(bits); break;
      case DType::i64: put(std::uint64_t{bits} << 20); break;
      default: REQUIRE(element_size(dtype) == 1); put(static_cast<std::uint8_t>(bits));
    }
  }
  return values;
}

// A buffer in memory of odd pieces with gaps between them.
class Pieces {
 public:
  Pieces(const Buffer& content, std::size_t element, int most, std::mt19937& random) {
    std::size_t left = content.size() / element;
    std::vector<std::size_t> lengths;
    for (int i = 1; i < most && left != 0; ++i) {
      lengths.push_back(random() % (left + 1));
      left -= lengths.back();
    }
    lengths.push_back(left);
    memory_.resize(content.size() + (lengths.size() + 1) * kGapBytes, std::byte{0xEE});
    std::size_t at = kGapBytes;
    for (const std::size_t length : lengths) {
      segments_.push_back({memory_.data() + at, length * element});
      at += length * element + kGapBytes;
    }
    std::size_t from = 0;
    for (const Segment& segment : segments_) {
      if (segment.bytes != 0) std::memcpy(segment.data, content.data() + from, segment.bytes);
      from += segment.bytes;
    }
  }

  std::span<const Segment> segments() const { return segments_; }

  Buffer content() const {
    Buffer joined;
    for (const Segment& segment : segments_) joined.insert(joined.end(), segment.data, segment.data + segment.bytes);
    return joined;
  }

  bool gaps_untouched() const {
    std::size_t at = 0;
    for (const Segment& segment : segments_) {
      for (; memory_.data() + at != segment.data; ++at) {
        if (memory_[at] != std::byte{0xEE}) return false;
      }
      at += segment.bytes;
    }
    return std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(at), memory_.end(),
                       [](std::byte b) { return b == std::byte{0xEE}; });
  }

 private:
  static constexpr std::size_t kGapBytes = 8;
  Buffer memory_;
  std::vector<Segment> segments_;
};

inline Buffer reduce_buffers(const std::vector<Buffer>& rows, const Row& row) {
  Buffer result(rows[0].size());
  std::vector<const std::byte*> inputs;
  for (const Buffer& each : rows) inputs.push_back(each.data());
  std::byte* output = result.data();
  reduce_rows({&output, 1}, inputs, result.size() / element_size(row.dtype), row.dtype, row.reduce,
              static_cast<int>(rows.size()));
  return result;
}

// What rank `rank` must have in its output, given all ranks' operands.
inline Buffer expected_output(const Row& row, int rank, const std::vector<Buffer>& operands, const Buffer& reduced) {
  const std::size_t part = row.count * element_size(row.dtype);
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<std::size_t>(rank));
  Buffer joined;
  switch (row.kind) {
    case OpKind::all_reduce: return reduced;
    case OpKind::reduce_scatter:
      return {reduced.begin() + at, reduced.begin() + at + static_cast<std::ptrdiff_t>(part)};
    case OpKind::broadcast: return operands[static_cast<std::size_t>(row.root)];
    case OpKind::all_gather:
      for (const Buffer& each : operands) joined.insert(joined.end(), each.begin(), each.end());
      return joined;
    default: return {};
  }
  return {};
}

// Runs one collective on all ranks, each with its memory in up to `pieces` pieces. "" or what was wrong.
inline std::string run_row(Engines& engines, const Row& row, int pieces, std::mt19937& random) {
  const std::size_t n = engines.size();
  const std::size_t element = element_size(row.dtype);
  const std::size_t operand_count = row.kind == OpKind::reduce_scatter ? row.count * n : row.count;
  const std::size_t output_count = row.kind == OpKind::all_gather ? row.count * n : row.count;
  const bool in_place = row.kind == OpKind::all_reduce || row.kind == OpKind::broadcast;
  std::vector<Buffer> operands;
  std::vector<Pieces> inputs, outputs;
  for (std::size_t rank = 0; rank < n; ++rank) {
    operands.push_back(random_values(row.dtype, operand_count, random));
    inputs.emplace_back(in_place ? Buffer() : operands.back(), element, pieces, random);
    outputs.emplace_back(in_place ? operands.back() : Buffer(output_count * element), element, pieces, random);
  }
  run_ranks_or_throw(static_cast<int>(n), [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    Collective collective{
        .kind = row.kind, .reduce = row.reduce, .dtype = row.dtype, .root = row.root, .count = row.count};
    if (row.kind != OpKind::barrier) collective.output = outputs[r].segments();
    if (row.kind == OpKind::all_gather || row.kind == OpKind::reduce_scatter) collective.input = inputs[r].segments();
    engines[r]->run(collective, soon());
  });
  const bool reduces = row.kind == OpKind::all_reduce || row.kind == OpKind::reduce_scatter;
  const Buffer reduced = reduces ? reduce_buffers(operands, row) : Buffer();
  for (std::size_t rank = 0; rank < n; ++rank) {
    const std::string where = " on rank " + std::to_string(rank);
    if (outputs[rank].content() != expected_output(row, static_cast<int>(rank), operands, reduced))
      return "wrong output" + where;
    if (!in_place && inputs[rank].content() != operands[rank]) return "input changed" + where;
    if (!outputs[rank].gaps_untouched() || !inputs[rank].gaps_untouched()) return "memory beside it changed" + where;
  }
  return "";
}

}  // namespace lockstep::testing
