#include "lockstep/train/data/gzip_stream.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{16} << 10;
constexpr ByteView kMagic("\x1f\x8b", 2);
constexpr int kGzipOnly = 15 + 16;  // zlib's window bits for it

}  // namespace

struct GzipStream::Inflate {
  Inflate() {
    if (::inflateInit2(&state, kGzipOnly) != Z_OK) throw Error(ErrorKind::internal, "no memory for zlib");
  }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
  ~Inflate() { ::inflateEnd(&state); }

  z_stream state{};
  bool is_over = false;  // a member has ended, its checksum is right
};

GzipStream::GzipStream(std::string name, ReadBytes source)
    : name_(std::move(name)), source_(std::move(source)), buffer_(kBufferBytes, '\0') {
  while (end_ < kMagic.size() && refill()) continue;
  if (ByteView(buffer_).substr(0, end_).starts_with(kMagic)) inflate_ = std::make_unique<Inflate>();
}

GzipStream::~GzipStream() = default;

void GzipStream::throw_damaged(std::uint64_t offset, const std::string& why) const {
  throw Error(ErrorKind::corrupt_data, fmt::format("{}: at byte {}: {}", name_, offset, why));
}

// False at the end of the source.
bool GzipStream::refill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  const MutableByteSpan space = std::as_writable_bytes(std::span(buffer_)).subspan(end_);
  const std::size_t got = source_(space);
  end_ += got;
  return got != 0;
}

std::size_t GzipStream::read(MutableByteSpan out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t count = is_compressed() ? read_inflated(out.subspan(done)) : read_plain(out.subspan(done));
    if (count == 0) break;
    done += count;
    offset_ += count;
  }
  return done;
}

std::size_t GzipStream::read_plain(MutableByteSpan out) {
  if (begin_ == end_) return source_(out);
  const std::size_t count = std::min(out.size(), end_ - begin_);
  std::memcpy(out.data(), buffer_.data() + begin_, count);
  begin_ += count;
  return count;
}

// gzip allows several members, one after the other.
void GzipStream::begin_member() {
  if (!ByteView(buffer_).substr(begin_, end_ - begin_).starts_with(kMagic)) {
    throw_damaged(offset_, "the compressed data ends here, but more bytes follow");
  }
  ::inflateReset(&inflate_->state);
  inflate_->is_over = false;
}

std::size_t GzipStream::read_inflated(MutableByteSpan out) {
  z_stream& state = inflate_->state;
  for (;;) {
    if (begin_ == end_ && !refill()) {
      if (inflate_->is_over) return 0;
      throw_damaged(offset_, "the compressed data is truncated");
    }
    if (inflate_->is_over) {
      while (end_ - begin_ < kMagic.size() && refill()) continue;
      begin_member();
    }
    const auto space = static_cast<uInt>(std::min<std::size_t>(out.size(), kBufferBytes));
    state.next_in = reinterpret_cast<Bytef*>(buffer_.data() + begin_);
    state.avail_in = static_cast<uInt>(end_ - begin_);
    state.next_out = reinterpret_cast<Bytef*>(out.data());
    state.avail_out = space;
    const int code = ::inflate(&state, Z_NO_FLUSH);
    begin_ = end_ - state.avail_in;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      throw_damaged(offset_ + (space - state.avail_out),
                    state.msg != nullptr ? state.msg : "the compressed data is invalid");
    }
    inflate_->is_over = code == Z_STREAM_END;
    if (state.avail_out != space) return space - state.avail_out;
  }
}

}  // namespace lockstep::internal
