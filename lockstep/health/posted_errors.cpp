#include "lockstep/health/posted_errors.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/net/wire.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestText = 4000;
constexpr std::string_view kMissing = "missing: ";

std::string silent_ranks(int rank, const std::vector<std::optional<Word>>& words,
                         const std::vector<std::string>& members, int& first) {
  std::string text;
  for (std::size_t peer = 0; peer < words.size(); ++peer) {
    if (words[peer] || static_cast<int>(peer) == rank) continue;
    if (first < 0) first = static_cast<int>(peer);
    text += fmt::format("{}{}", text.empty() ? "" : ", ", members[peer]);
  }
  return text;
}

}  // namespace

Word decode_word(ByteView told, int rank) {
  try {
    WireReader reader(told, {"last word", rank});
    const ErrorKind kind = checked_error_kind(reader.u8() - '0', reader.origin());
    return {kind, std::string(reader.take(reader.left()))};
  } catch (const Error& error) {  // it has said something: it is not silent
    return {error.kind(), error.what()};
  }
}

PostedErrors::PostedErrors(std::shared_ptr<Store> store, const std::string& group, int rank, int size)
    : store_(std::move(store)), prefix_("last words/" + group + "/"), rank_(rank), size_(size) {}

std::string PostedErrors::key_of(int rank) const { return prefix_ + std::to_string(rank); }

void PostedErrors::say(const Word& word, Deadline deadline) noexcept {
  try {
    const std::string value = static_cast<char>('0' + static_cast<int>(word.kind)) + word.text.substr(0, kLongestText);
    store_->set(key_of(rank_), value, deadline);
    store_->set(prefix_ + "any", "1", deadline);
  } catch (const std::exception&) {  // the store has ended before the group
  }
}

std::vector<std::optional<Word>> PostedErrors::hear(Deadline deadline) noexcept {
  std::vector<std::optional<Word>> words(static_cast<std::size_t>(size_));
  try {
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) keys.push_back(key_of(rank));
    const std::vector<std::string> missing = store_->wait(keys, deadline);
    const Deadline soon = Deadline::after(std::chrono::seconds(1));
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (std::find(missing.begin(), missing.end(), keys[rank]) != missing.end()) continue;
      words[rank] = decode_word(store_->get(keys[rank], soon), static_cast<int>(rank));
    }
  } catch (const std::exception&) {  // the store has ended before the group
  }
  return words;
}

bool PostedErrors::any(Deadline deadline) noexcept {
  try {
    return store_->check({prefix_ + "any"}, deadline);
  } catch (const std::exception&) {  // the store has ended before the group
    return false;
  }
}

Error verdict(const Error& seen, int rank, const std::vector<std::optional<Word>>& words,
              const std::vector<std::string>& members) {
  ErrorKind kind = seen.kind();
  std::string text = seen.what();
  ErrorDetail detail = seen.detail();
  detail.rank = rank;
  int first = -1;
  const std::string silent = silent_ranks(rank, words, members, first);
  for (const ErrorKind stronger : {ErrorKind::aborted, ErrorKind::corrupt_data, ErrorKind::timeout}) {
    // A rank that has an error at first hand keeps it, unless its own time was up and others know for whom they waited.
    const bool asks = stronger == ErrorKind::timeout && silent.empty() && !text.starts_with(kMissing);
    if (kind == stronger && !asks) break;
    const auto heard = std::find_if(words.begin(), words.end(), [&](const auto& w) {
      return w && w->kind == stronger && (kind != stronger || w->text.starts_with(kMissing));
    });
    if (heard != words.end()) {
      kind = stronger;
      text = (*heard)->text;
      detail.peer = static_cast<int>(heard - words.begin());
    }
    if (kind == stronger) break;
  }
  const bool names_ranks = text.starts_with(kMissing);
  if (!silent.empty() && !names_ranks && (kind == ErrorKind::timeout || kind == ErrorKind::peer_lost)) {
    detail.peer = first;
    text = kind == ErrorKind::timeout ? fmt::format("{}{} ({})", kMissing, silent, text)
                                      : fmt::format("{} died or left the group ({})", silent, text);
  }
  return Error(kind, text, detail);
}

}  // namespace lockstep
