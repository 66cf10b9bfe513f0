// What this CPU and its operating system offer, by cpuid and xgetbv: the compilers' builtins ask a
// run-time library, which answers no to everything in some toolchains.
#pragma once

#include <cstdint>
#include <string>

#include "relpos/export.h"

namespace relpos {

struct Cpu {
  bool intel = false;
  bool zen4_or_3 = false;  // AMD's family 19h
  // Whole targets, with all instructions that the kernels of this name are compiled for.
  bool avx2 = false, avx512 = false, avx512_bf16 = false;
  bool amx_bf16 = false;  // the operating system's permission aside
};

// Asked once. Nothing on a CPU that is not x86-64.
const Cpu& this_cpu();

// Whether this CPU runs what is compiled for a SIMD target: "avx512", "avx2", "neon" or "baseline".
RELPOS_EXPORT bool runs_target(const std::string& name);

}  // namespace relpos
