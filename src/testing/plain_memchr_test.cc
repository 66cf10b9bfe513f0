// memchr() in the place of MemorySanitizer's, which stops at strings that libstdc++'s compiled part wrote where
// the sanitizer does not see it. Of its other such functions MSAN_OPTIONS turns the checks off.
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <cstddef>

extern "C" __attribute__((no_sanitize("memory"), no_builtin("memchr"))) void* memchr(
    const void* from, int byte, size_t count) {
  const auto* at = static_cast<const unsigned char*>(from);
  for (size_t n = 0; n < count; ++n) {
    if (at[n] == static_cast<unsigned char>(byte)) return const_cast<unsigned char*>(at + n);
  }
  return nullptr;
}
#endif
#endif
