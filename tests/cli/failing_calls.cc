// A library for LD_PRELOAD, in which a system call of a process fails: the FAIL_AT-th call of the function
// FAIL_CALL, or with FAIL_ON=1 all from it on, with the error FAIL_ERROR. Instead of it, with FAIL_ERROR=0 half
// of the bytes are moved, and with FAIL_ERROR=-1 the process is killed. An empty file FAIL_REACHED says that the
// call came.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

const char* setting(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

// Whether this call of `name` is to fail, with errno.
bool fails(const char* name) {
  static std::atomic<int> calls{0};
  if (strcmp(setting("FAIL_CALL"), name) != 0) return false;
  const int first = atoi(setting("FAIL_AT")), call = ++calls;
  if (call != first && (call < first || strcmp(setting("FAIL_ON"), "1") != 0)) return false;
  syscall(SYS_close,
          syscall(SYS_openat, AT_FDCWD, setting("FAIL_REACHED"), O_WRONLY | O_CREAT, 0600));
  const int error = atoi(setting("FAIL_ERROR"));
  if (error < 0) kill(getpid(), SIGKILL);
  errno = error;
  return true;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Calls the C library's function, or fails.
template <typename Result, typename... Arguments>
Result call(const char* name, Arguments... arguments) {
  if (fails(name)) return -1;
  return next<Result(Arguments...)>(name)(arguments...);
}

// Of functions that move `bytes`.
template <typename Move>
ssize_t moved(const char* name, size_t bytes, Move move) {
  if (!fails(name)) return move(bytes);
  return errno != 0 ? -1 : move(bytes > 1 ? bytes / 2 : bytes);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (fails("open")) return -1;
  return next<int(const char*, int, ...)>("open")(path, flags, mode);
}

int fcntl(int file, int command, ...) {
  va_list more;
  va_start(more, command);
  void* argument = va_arg(more, void*);
  va_end(more);
  if (fails("fcntl")) return -1;
  return next<int(int, int, ...)>("fcntl")(file, command, argument);
}

ssize_t read(int file, void* data, size_t bytes) {
  return moved("read", bytes,
               [&](size_t n) { return next<ssize_t(int, void*, size_t)>("read")(file, data, n); });
}

ssize_t pread(int file, void* data, size_t bytes, off_t at) {
  return moved("pread", bytes, [&](size_t n) {
    return next<ssize_t(int, void*, size_t, off_t)>("pread")(file, data, n, at);
  });
}

ssize_t write(int file, const void* data, size_t bytes) {
  return moved("write", bytes, [&](size_t n) {
    return next<ssize_t(int, const void*, size_t)>("write")(file, data, n);
  });
}

int stat(const char* path, struct stat* found) noexcept { return call<int>("stat", path, found); }
int lstat(const char* path, struct stat* found) noexcept { return call<int>("lstat", path, found); }
int fstat(int file, struct stat* found) noexcept { return call<int>("fstat", file, found); }
off_t lseek(int file, off_t to, int from) noexcept { return call<off_t>("lseek", file, to, from); }
int access(const char* path, int mode) noexcept { return call<int>("access", path, mode); }
int fchown(int file, uid_t owner, gid_t group) noexcept {
  return call<int>("fchown", file, owner, group);
}
int fchmod(int file, mode_t mode) noexcept { return call<int>("fchmod", file, mode); }
int fsync(int file) { return call<int>("fsync", file); }
int link(const char* from, const char* to) noexcept { return call<int>("link", from, to); }
int mkdir(const char* path, mode_t mode) noexcept { return call<int>("mkdir", path, mode); }
ssize_t readlink(const char* path, char* to, size_t bytes) noexcept {
  return call<ssize_t>("readlink", path, to, bytes);
}
int rename(const char* from, const char* to) noexcept { return call<int>("rename", from, to); }
int unlink(const char* path) noexcept { return call<int>("unlink", path); }

// The file is closed all the same, as Linux does it.
int close(int file) {
  const int done = next<int(int)>("close")(file);
  return fails("close") ? -1 : done;
}

}  // extern "C"
