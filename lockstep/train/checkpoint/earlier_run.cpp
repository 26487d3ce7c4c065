#include "lockstep/train/checkpoint/earlier_run.h"

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/step_files.h"

namespace lockstep::internal {

void hide_earlier_run(const std::filesystem::path& directory, const std::filesystem::path& except) {
  std::vector<SetPlace> all = list_sets(directory);
  for (const std::filesystem::path& each : list_parts_alone(directory)) {
    if (holds_only_parts(each)) all.push_back({step_of_set(each).value_or(0), each});
  }
  for (const StepFile& file : list_step_files(directory)) all.push_back({file.step, file.path});
  std::ranges::stable_sort(all, {}, &SetPlace::step);
  for (const SetPlace& each : all) {
    if (each.path.filename() == except.filename()) continue;
    try {
      if (step_of(each.path)) {
        remove_step_file(each.path);
      } else {
        hide_set(each.path);
      }
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("a checkpoint of the earlier run, which start_anew() replaces, cannot be "
                                            "removed: {}; remove it, or name another directory",
                                            error.what()));
    }
  }
}

}  // namespace lockstep::internal
