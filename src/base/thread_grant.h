// How many threads the system grants. libgomp ends the process where it cannot make one.
#pragma once

namespace relpos {

// How many threads, from 1 to `wanted` and with this one, a team can have now. It is tested again if a
// team is larger than all earlier ones of this thread, if limits have changed, and in a limited address
// space.
int granted_threads(int wanted);

}  // namespace relpos
