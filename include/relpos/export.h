// What is seen outside of a shared library. RELPOS_SHARED comes with the target: it is defined where
// relpos was built with BUILD_SHARED_LIBS, in the library and in what is linked to it.
#pragma once

#if defined(RELPOS_SHARED)
#define RELPOS_EXPORT __attribute__((visibility("default")))
#else
#define RELPOS_EXPORT
#endif
