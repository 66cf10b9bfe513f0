// Teams of threads. With RELPOS_THREADS=openmp they are OpenMP's, which is linked. With std they are
// those of the OpenMP that is in the process already, PyTorch's, say, so that one pool waits for work;
// where there is none, a pool of our own. A forked child has none of its parent's threads and always
// uses its own pool.
#pragma once

#include <type_traits>

namespace relpos {

int default_threads();
// Asked once, for it is a system call; not by a thread that may be bound to one core.
int usable_cores();
bool in_forked_child() noexcept;
// "OpenMP", "OpenMP: PATH" of the library that was found, or "own pool".
const char* thread_backend();

namespace detail {
using Work = void (*)(void* context, int worker);
void enter_team(int workers, int threads, Work work, void* context);
}  // namespace detail

// Calls work(worker) for worker 0 on this thread and for some of 1 to `workers` - 1 on others: those
// that come before work(0) has returned. OpenMP's teams have all of the `threads` that the call may use.
template <typename F>
void run_team(int workers, int threads, const F& work) {
  detail::enter_team(
      workers, threads,
      [](void* context, int worker) { (*static_cast<const F*>(context))(worker); },
      const_cast<std::remove_const_t<F>*>(&work));
}

}  // namespace relpos
