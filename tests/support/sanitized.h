// Whether a sanitizer makes every step of a test several times slower, so that it takes fewer of them.
#pragma once

namespace lockstep::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace lockstep::testing
