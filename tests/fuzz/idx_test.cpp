#include <doctest/doctest.h>
#include <zlib.h>

#include <cstring>

#include "lockstep/train/data/idx_file.h"
#include "tests/fuzz/fuzz.h"

namespace idx_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

Bytes big_endian(std::uint32_t number) {
  Bytes bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(number >> shift & 0xff));
  return bytes;
}

Bytes gzip(const Bytes& plain) {
  z_stream state{};
  REQUIRE(::deflateInit2(&state, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(plain.size() + 100, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  state.avail_in = static_cast<uInt>(plain.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(::deflate(&state, Z_FINISH) == Z_STREAM_END);
  packed.resize(state.total_out);
  ::deflateEnd(&state);
  return packed;
}

void load(ByteView bytes) {
  const ReadBytes read = [rest = bytes](MutableByteSpan out) mutable {
    const std::size_t count = std::min({out.size(), rest.size(), std::size_t{97}});
    std::memcpy(out.data(), rest.data(), count);
    rest.remove_prefix(count);
    return count;
  };
  IdxFile file(IdxSource{"images", read, bytes.size()}, {4, 3});
  std::vector<std::byte> elements(file.size_bytes());
  file.read(elements);
}

Bytes images(std::uint32_t count) {
  return big_endian(0x803) + big_endian(count) + big_endian(4) + big_endian(3) + Bytes(count * 12, 'p');
}

}  // namespace

TEST_CASE("IDX files") { fuzz::run({.name = "IDX files", .seeds = {images(5), images(0)}, .parse = load}); }

TEST_CASE("compressed IDX files") {
  fuzz::run({.name = "compressed IDX files",
             .seeds = {gzip(images(5)), gzip(images(200)), gzip(images(5).substr(0, 20)) + gzip(images(5).substr(20))},
             .repair = [](Bytes& bytes, fuzz::Random&) { bytes = gzip(bytes); },  // what is inside is mutated
             .memory_limit = std::size_t{24} << 20,
             .parse = load});
}

}  // namespace idx_test
