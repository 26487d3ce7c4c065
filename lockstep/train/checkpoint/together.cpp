#include "lockstep/train/checkpoint/together.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/object_codecs.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {
namespace {

// A kind of error and its text, or kFine and the result of an action.
using Told = std::pair<int, std::string>;
constexpr int kFine = -1;

bool is_lack_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string_view(error.what_without_backtrace()).find("DefaultCPUAllocator") != std::string_view::npos;
}

Told told_of(const std::optional<Error>& failure) {
  return failure ? Told(static_cast<int>(failure->kind()), failure->what()) : Told(kFine, "");
}

Told told_by(const std::function<std::string()>& action) {
  std::string text;
  const auto failure = error_in([&] { text = action(); });
  return failure ? told_of(failure) : Told(kFine, std::move(text));
}

[[noreturn]] void throw_told(const Told& told, std::string_view what, int rank, bool is_by_all) {
  throw Error(checked_error_kind(told.first, {what, rank}),
              is_by_all ? told.second : fmt::format("rank {}: {}", rank, told.second), {.rank = rank});
}

std::vector<Told> gather(const ProcessGroup& group, const Told& mine, std::string_view what) {
  std::vector<Told> all = group.all_gather_object(mine, {.name = what});
  const auto failed = std::ranges::find_if(all, [](const Told& each) { return each.first != kFine; });
  if (failed == all.end()) return all;
  const bool is_by_all = std::ranges::all_of(all, [&](const Told& each) { return each == *failed; });
  throw_told(*failed, what, static_cast<int>(failed - all.begin()), is_by_all);
}

}  // namespace

std::optional<Error> error_in(const std::function<void()>& action) {
  try {
    action();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const c10::Error& error) {
    return Error(is_lack_of_memory(error) ? ErrorKind::internal : ErrorKind::invalid_argument,
                 error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::internal, "there is not enough memory");
  } catch (const std::system_error& error) {  // and of std::filesystem
    return Error(ErrorKind::internal, error.what());
  } catch (...) {
    return Error(ErrorKind::invalid_argument, text_of_exception());
  }
}

void fail_together(const ProcessGroup& group, const std::optional<Error>& mine, std::string_view what) {
  gather(group, told_of(mine), what);
}

void act_together(const ProcessGroup& group, std::string_view what, const std::function<void()>& action) {
  fail_together(group, error_in(action), what);
}

std::vector<std::string> gather_together(const ProcessGroup& group, std::string_view what,
                                         const std::function<std::string()>& action) {
  std::vector<std::string> texts;
  for (Told& each : gather(group, told_by(action), what)) texts.push_back(std::move(each.second));
  return texts;
}

std::string from_rank_0(const ProcessGroup& group, std::string_view what, const std::function<std::string()>& action) {
  const Told told = group.broadcast_object(group.rank() == 0 ? told_by(action) : Told(), 0, {.name = what});
  if (told.first != kFine) throw_told(told, what, 0, group.size() == 1);
  return told.second;
}

}  // namespace lockstep::internal
