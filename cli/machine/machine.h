// The machine of a bench: its name, and the most that it can do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace relpos::cli {

// "AMD EPYC, family 25 model 17", where the system says so; else "unknown CPU".
std::string cpu_name();

// Seconds from a common start to the end of the last of `threads` calls work(worker).
double parallel_seconds(int threads, const std::function<void(int)>& work);

// `target`: the "target of float32" of relpos::show_config().

// Multiply-adds of all threads, GFLOP/s, each counted twice: the best of several bursts.
double peak_gflops(const std::string& target, int threads);

// Seconds in which all threads read x once. Reads whole pieces of 256 KiB; x is aligned to 64 bytes.
double reading_seconds(const std::string& target, int threads, const float* x, int64_t n);

// GB/s of all threads reading memory beyond every cache: the best of several passes.
double read_bandwidth(const std::string& target, int threads);

}  // namespace relpos::cli
