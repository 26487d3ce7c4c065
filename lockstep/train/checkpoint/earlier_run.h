// The checkpoints of an earlier run, in a directory where a run begins anew. They go before the new run's first set
// appears, the newest one last: at any moment, also after a crash, the directory has the newest checkpoint of one run,
// or for an instant none, and never those of both. Blocks for disk I/O.
#pragma once

#include <filesystem>

namespace lockstep::internal {

// Hides all sets, damaged ones too, and removes all single files, but for the set `except`, which is about to be
// replaced. Hidden sets go with remove_abandoned_sets(). Error{internal}: one cannot be renamed or removed; newer ones
// are left then.
void hide_earlier_run(const std::filesystem::path& directory, const std::filesystem::path& except);

}  // namespace lockstep::internal
