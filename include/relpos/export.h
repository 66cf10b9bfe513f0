// What is seen outside of a shared library: one name, or all from BEGIN to END. RELPOS_SHARED comes
// with the target: it is defined where relpos was built with BUILD_SHARED_LIBS, in the library and in
// what is linked to it. An attribute of the namespace would not do: clang takes it from the namespace
// that it sees last.
#pragma once

#if defined(RELPOS_SHARED)
#define RELPOS_EXPORT __attribute__((visibility("default")))
#define RELPOS_EXPORT_BEGIN _Pragma("GCC visibility push(default)")
#define RELPOS_EXPORT_END _Pragma("GCC visibility pop")
#else
#define RELPOS_EXPORT
#define RELPOS_EXPORT_BEGIN
#define RELPOS_EXPORT_END
#endif
