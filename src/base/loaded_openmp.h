// The OpenMP that another library has brought into this process: GNU's, or one that has its entry points.
#pragma once

#include <string>

namespace relpos {

struct LoadedOpenMP {
  std::string title;  // "OpenMP: PATH"
  int cores = 1;
  int (*max_threads)() = nullptr;
  int (*thread_number)() = nullptr;
  void (*parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
};

// Null where there is none. Looks again only where a library was loaded since; what was found stays.
// PyTorch's comes first, which torch.set_num_threads speaks to.
const LoadedOpenMP* loaded_openmp();

}  // namespace relpos
