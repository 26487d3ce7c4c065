// Options of groups about ranks that make different calls.
#pragma once

namespace lockstep {

// What to do about calls without a name that differ in their source line only. Programs may have reasons (one rank
// broadcasts where the others have another branch), but two calls that were swapped look the same.
//   free        nothing
//   warn        a warning, once, for calls without a root: ranks seldom make those in different lines
//   must_match  they count as different calls
enum class CallSites { free, warn, must_match };

}  // namespace lockstep
