// The floating-point control word of this thread: which denormals are flushed, and how results round.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace relpos {

#if defined(__SSE__)
using FloatControl = uint32_t;
inline FloatControl read_float_control() noexcept { return _mm_getcsr(); }
inline void write_float_control(FloatControl control) noexcept { _mm_setcsr(control); }
// Exceptions masked, round to nearest; denormals kept, or treated as 0 in inputs and results.
inline constexpr FloatControl kKeepDenormals = 0x1F80, kFlushDenormals = 0x9FC0;
#elif defined(__aarch64__)
using FloatControl = uint64_t;
inline FloatControl read_float_control() noexcept {
  FloatControl control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
inline void write_float_control(FloatControl control) noexcept {
  asm volatile("msr fpcr, %0" : : "r"(control));
}
inline constexpr FloatControl kKeepDenormals = 0, kFlushDenormals = FloatControl{1} << 24;
#else
using FloatControl = int;
inline FloatControl read_float_control() noexcept { return 0; }
inline void write_float_control(FloatControl) noexcept {}
inline constexpr FloatControl kKeepDenormals = 0, kFlushDenormals = 0;
#endif

// Sets a control word for a scope, then restores the previous one with its status flags.
class FloatMode {
 public:
  explicit FloatMode(FloatControl control = kKeepDenormals) noexcept
      : before_(read_float_control()) {
    write_float_control(control);
  }
  ~FloatMode() { write_float_control(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

  FloatControl before() const noexcept { return before_; }

 private:
  FloatControl before_;
};

}  // namespace relpos
