// Which sanitizer watches this build.
#pragma once

// gcc says it by macros, clang by __has_feature.
#ifdef __has_feature
#define RELPOS_HAS_FEATURE(name) __has_feature(name)
#else
#define RELPOS_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || RELPOS_HAS_FEATURE(address_sanitizer)
#define RELPOS_ADDRESS_SANITIZER 1
#endif
#if RELPOS_HAS_FEATURE(memory_sanitizer)
#define RELPOS_MEMORY_SANITIZER 1
#endif
#if defined(__SANITIZE_THREAD__) || RELPOS_HAS_FEATURE(thread_sanitizer)
#define RELPOS_THREAD_SANITIZER 1
#endif
#undef RELPOS_HAS_FEATURE

namespace relpos {

// The test then takes ten times as long. Sanitizers look at addresses, races, undefined behaviour and
// uninitialised memory, so what only compares numbers may try fewer.
#if defined(RELPOS_ADDRESS_SANITIZER) || defined(RELPOS_MEMORY_SANITIZER) || \
    defined(RELPOS_THREAD_SANITIZER)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Memory that is freed and given out again looks whole, and initialised, to these.
#if defined(RELPOS_ADDRESS_SANITIZER) || defined(RELPOS_MEMORY_SANITIZER)
inline constexpr bool kSanitizesMemory = true;
#else
inline constexpr bool kSanitizesMemory = false;
#endif

}  // namespace relpos
