// How many threads the system grants. libgomp ends the process where it cannot make one.
#pragma once

#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// 1 to `wanted`: a team of so many, this thread included, can be made now. Asked anew where a team
// outgrows those that this thread has had, where limits have changed, and in a limited address space.
int granted_threads(int wanted);

}  // namespace relpos
RELPOS_EXPORT_END
