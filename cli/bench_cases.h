// The rows of the bench: what each is called, what it must reach, how it is measured.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench_trial.h"

namespace relpos::cli {

struct BenchSetup {
  std::string target;  // in use
  int threads = 1;
  Budget budget;
};

// What the rounds of a row gave.
struct Measured {
  bool of_peak = false;        // values are GFLOP/s, to become a percentage of the machine's
  std::vector<double> values;  // one for each round
  std::vector<std::pair<std::string, double>> milliseconds;  // medians, by side
  std::string note;
  std::vector<double> looks;  // of Turns
};

struct BenchCase {
  int place;  // in the whole table, that of the peers included
  std::string name, unit;
  bool higher_wins;
  double floor, stretch;  // infinite: nothing is asked
  bool once = false;      // long, and the same every time: later runs of one bench leave it out
  std::function<Measured(const BenchSetup&)> run;  // throws Error
};

const std::vector<BenchCase>& bench_cases();

// In a process of its own: peak bytes beyond inputs, outputs and gradients of a causal forward and
// backward pass with one head and a trained bias, then the bytes of q, k and v, then the seconds.
struct MemoryProbe {
  double peak_bytes, input_bytes, seconds;
};
MemoryProbe probe_memory(int64_t length, int threads);

// The tables of DeBERTa's disentangled attention, which no scheme of the registry has: rows for
// queries and for keys in 512 classes of distances.
const Scheme& row_and_column_tables();

}  // namespace relpos::cli
