// A pool of threads of our own, kept from call to call.
#pragma once

namespace relpos {

// OMP_NUM_THREADS, else the cores; at most OMP_THREAD_LIMIT.
int pool_threads();
// Those of the process's affinity mask when the library was loaded.
int pool_cores();

// work(context, 0) on this thread, and work(context, n), 1 <= n < workers, on threads that come before it
// returns. Alone within a worker. Each of several calls at a time has a pool of its own; fewer threads
// come where the system makes no more.
void run_in_pool(int workers, void (*work)(void* context, int worker), void* context);

// In a forked child, where only one thread is left: the next team makes its threads anew.
void forget_pools() noexcept;

}  // namespace relpos
