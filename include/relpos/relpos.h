// The whole C++ API of relpos.
#pragma once

#include "relpos/attention.h"     // IWYU pragma: export
#include "relpos/call_options.h"  // IWYU pragma: export
#include "relpos/conventions.h"   // IWYU pragma: export
#include "relpos/dense.h"         // IWYU pragma: export
#include "relpos/error.h"         // IWYU pragma: export
#include "relpos/family.h"        // IWYU pragma: export
#include "relpos/lower.h"         // IWYU pragma: export
#include "relpos/position.h"      // IWYU pragma: export
#include "relpos/scheme.h"        // IWYU pragma: export
#include "relpos/tensor.h"        // IWYU pragma: export
#include "relpos/terms.h"         // IWYU pragma: export
#include "relpos/version.h"       // IWYU pragma: export
