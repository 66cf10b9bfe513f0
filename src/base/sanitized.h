// Whether a sanitizer watches a test, which then takes ten times as long. It looks at addresses and
// at undefined behaviour, so what only compares numbers may try fewer there.
#pragma once

namespace relpos {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace relpos
