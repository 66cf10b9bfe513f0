#include "base/loaded_openmp.h"

#ifdef __linux__

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <vector>

namespace relpos {
namespace {

// Libraries of the process so far, whatever became of them.
unsigned long long libraries() {
  unsigned long long count = 0;
  const auto first = [](dl_phdr_info* info, size_t, void* data) {
    *static_cast<unsigned long long*>(data) = info->dlpi_adds;
    return 1;
  };
  dl_iterate_phdr(first, &count);
  return count;
}

struct Paths {
  std::vector<std::string> torch, openmp;
};

Paths paths() {
  Paths found;
  const auto each = [](dl_phdr_info* info, size_t, void* data) {
    const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    const std::string_view name = path.substr(path.rfind('/') + 1);
    Paths& paths = *static_cast<Paths*>(data);
    if (name.starts_with("libtorch_cpu.")) paths.torch.emplace_back(path);
    for (const char* openmp : {"libgomp.", "libgomp-", "libomp.", "libomp-", "libiomp5"}) {
      if (name.starts_with(openmp)) paths.openmp.emplace_back(path);
    }
    return 0;
  };
  dl_iterate_phdr(each, &found);
  return found;
}

// From the library at `path` or from those that it is linked with; a handle that fits is kept.
bool take(const std::string& path, LoadedOpenMP& into) {
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  const auto symbol = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    return function != nullptr;
  };
  int (*processors)() = nullptr;
  if (symbol(into.parallel, "GOMP_parallel") && symbol(into.thread_number, "omp_get_thread_num") &&
      symbol(into.max_threads, "omp_get_max_threads") && symbol(processors, "omp_get_num_procs")) {
    into.cores = processors();
    Dl_info where{};
    auto* address = reinterpret_cast<void*>(into.parallel);
    into.title = "OpenMP: ";
    into.title +=
        dladdr(address, &where) != 0 && where.dli_fname != nullptr ? where.dli_fname : path;
    return true;
  }
  dlclose(handle);
  return false;
}

const LoadedOpenMP* look() {
  const Paths found = paths();
  LoadedOpenMP openmp;
  for (const auto* list : {&found.torch, &found.openmp}) {
    for (const std::string& path : *list) {
      if (take(path, openmp)) return new LoadedOpenMP(openmp);
    }
  }
  return nullptr;
}

}  // namespace

const LoadedOpenMP* loaded_openmp() {
  static std::atomic<const LoadedOpenMP*> known{nullptr};
  static std::atomic<unsigned long long> looked_at{0};
  const LoadedOpenMP* openmp = known.load(std::memory_order_acquire);
  if (openmp != nullptr) return openmp;
  const unsigned long long now = libraries();
  if (looked_at.load(std::memory_order_acquire) == now) return nullptr;
  openmp = look();
  const LoadedOpenMP* none = nullptr;
  if (openmp != nullptr && !known.compare_exchange_strong(none, openmp)) {
    delete openmp;
    return none;
  }
  looked_at.store(now, std::memory_order_release);
  return openmp;
}

}  // namespace relpos

#else

namespace relpos {

const LoadedOpenMP* loaded_openmp() { return nullptr; }

}  // namespace relpos

#endif
