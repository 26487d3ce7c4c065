#include "lockstep/formats/strided_read.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kWindowBytes = std::size_t{256} << 10;
constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

struct StridedDimension {
  std::uint64_t size;
  std::uint64_t from;  // bytes from one element to the next, in the storage
  std::uint64_t to;    // and in the result
};

// The part of the storage that was read last.
class StorageWindow {
 public:
  StorageWindow(std::uint64_t storage_bytes, const FetchBytes& fetch) : storage_bytes_(storage_bytes), fetch_(fetch) {}

  void copy(std::uint64_t from, MutableByteSpan out) {
    if (out.size() >= kWindowBytes) return fetch_(from, out);
    if (from < begin_ || from + out.size() > begin_ + bytes_.size()) {
      bytes_.resize(std::min<std::uint64_t>(kWindowBytes, storage_bytes_ - from));
      begin_ = from;
      fetch_(begin_, bytes_);
    }
    std::memcpy(out.data(), bytes_.data() + (from - begin_), out.size());
  }

 private:
  std::uint64_t storage_bytes_;
  const FetchBytes& fetch_;
  std::uint64_t begin_ = 0;
  std::vector<std::byte> bytes_;
};

// Dimensions in the order in which the storage is read, the outermost first. Those that lie behind each other on both
// sides become one.
std::vector<StridedDimension> reading_order(const StridedLayout& layout) {
  std::vector<StridedDimension> dimensions;
  std::uint64_t to = layout.element_bytes;
  for (std::size_t i = layout.shape.size(); i-- > 0;) {
    const auto size = static_cast<std::uint64_t>(layout.shape[i]);
    if (size == 1) continue;
    dimensions.push_back({size, static_cast<std::uint64_t>(layout.strides[i]) * layout.element_bytes, to});
    to *= size;
  }
  std::ranges::stable_sort(
      dimensions, [](const auto& a, const auto& b) { return a.from != b.from ? a.from > b.from : a.to > b.to; });
  std::vector<StridedDimension> merged;
  for (const StridedDimension& each : dimensions) {
    if (!merged.empty() && merged.back().from == each.from * each.size && merged.back().to == each.to * each.size) {
      merged.back() = {merged.back().size * each.size, each.from, each.to};
    } else {
      merged.push_back(each);
    }
  }
  return merged;
}

}  // namespace

std::uint64_t checked_strided_bytes(const StridedLayout& layout, std::uint64_t storage_bytes,
                                    const std::string& origin) {
  const auto fail = [&](std::string_view why) {
    throw Error(ErrorKind::corrupt_data, fmt::format("{}: a tensor of {} with strides {} from element {} on {}", origin,
                                                     layout.shape, layout.strides, layout.offset, why));
  };
  std::uint64_t bytes = layout.element_bytes;
  for (const std::int64_t size : layout.shape) {
    const auto factor = std::max<std::uint64_t>(static_cast<std::uint64_t>(size), 1);
    if (bytes > kMostBytes / factor) fail("takes more than 2^63 bytes");
    bytes *= factor;
  }
  if (std::ranges::find(layout.shape, 0) != layout.shape.end()) return 0;
  unsigned __int128 last = static_cast<std::uint64_t>(layout.offset);
  for (std::size_t i = 0; i < layout.shape.size(); ++i) {
    last += static_cast<unsigned __int128>(layout.shape[i] - 1) * static_cast<std::uint64_t>(layout.strides[i]);
  }
  if ((last + 1) * layout.element_bytes > storage_bytes) {
    fail(fmt::format("lies beyond its storage of {} bytes", storage_bytes));
  }
  return bytes;
}

void read_strided(const StridedLayout& layout, std::uint64_t storage_bytes, const FetchBytes& fetch,
                  MutableByteSpan out) {
  if (out.empty()) return;
  const std::uint64_t begin = static_cast<std::uint64_t>(layout.offset) * layout.element_bytes;
  std::vector<StridedDimension> dimensions = reading_order(layout);
  std::size_t run = layout.element_bytes;  // what lies together on both sides
  if (!dimensions.empty() && dimensions.back().from == run && dimensions.back().to == run) {
    run *= dimensions.back().size;
    dimensions.pop_back();
  }
  StorageWindow window(storage_bytes, fetch);
  std::vector<std::uint64_t> index(dimensions.size());
  std::uint64_t from = begin;
  std::uint64_t to = 0;
  for (;;) {
    window.copy(from, out.subspan(to, run));
    std::size_t d = dimensions.size();
    for (; d > 0; --d) {
      const StridedDimension& dimension = dimensions[d - 1];
      from += dimension.from;
      to += dimension.to;
      if (++index[d - 1] < dimension.size) break;
      from -= dimension.from * dimension.size;
      to -= dimension.to * dimension.size;
      index[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

}  // namespace lockstep::internal
