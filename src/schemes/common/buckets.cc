#include "schemes/common/buckets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "relpos/error.h"

namespace relpos::common {

namespace {

constexpr double kTie = 1e-9;
constexpr int64_t kLargestPower = 4096;  // a larger one takes longer than an attention call

// A natural number above 0, least significant 16 bits first.
using Natural = std::vector<uint16_t>;

void multiply(Natural& number, int64_t factor) {
  uint64_t carry = 0;  // below 2^48, as the factor: 2^16 2^48 + carry fits
  for (uint16_t& digit : number) {
    carry += digit * static_cast<uint64_t>(factor);
    digit = static_cast<uint16_t>(carry);
    carry >>= 16;
  }
  for (; carry > 0; carry >>= 16) number.push_back(static_cast<uint16_t>(carry));
}

// a^p b^q
Natural powers(int64_t a, int64_t p, int64_t b, int64_t q) {
  Natural number = {1};
  for (int64_t i = 0; i < p; ++i) multiply(number, a);
  for (int64_t i = 0; i < q; ++i) multiply(number, b);
  return number;
}

bool at_least(const Natural& a, const Natural& b) {
  if (a.size() != b.size()) return a.size() > b.size();
  return !std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
}

}  // namespace

Buckets::Buckets(const char* scheme, int64_t buckets, int64_t max_distance, bool bidirectional)
    : per_side_(bidirectional ? buckets / 2 : buckets),
      max_exact_(per_side_ / 2),
      max_distance_(max_distance),
      bidirectional_(bidirectional) {
  check_value(buckets >= 2, scheme, ": buckets: expected at least 2, got ", buckets);
  check_value(!bidirectional || buckets % 2 == 0, scheme,
              ": buckets: expected an even number, half for each direction, got ", buckets,
              "; give an even one, or bidirectional=False");
  check_value(max_distance > max_exact_, scheme, ": max_distance: expected more than ", max_exact_,
              ", the distances that have buckets of their own with buckets=", buckets,
              bidirectional ? " in two directions" : " in one direction", ", got ", max_distance);
  if (max_exact_ > 0) {
    log_range_ = std::log(static_cast<double>(max_distance) / static_cast<double>(max_exact_));
  }
}

double Buckets::value_if_large(int64_t n) const noexcept {
  if (per_side_ == 1) return 0.0;
  const double exact = static_cast<double>(max_exact_);
  return exact + std::log(static_cast<double>(n) / exact) / log_range_ *
                     static_cast<double>(per_side_ - max_exact_);
}

bool Buckets::reaches(int64_t n, int64_t k) const {
  const int64_t common_power = std::gcd(per_side_ - max_exact_, k);
  const int64_t p = (per_side_ - max_exact_) / common_power, q = k / common_power;
  if (p > kLargestPower) return true;
  const int64_t of_n = std::gcd(n, max_exact_), of_range = std::gcd(max_distance_, max_exact_);
  return at_least(powers(n / of_n, p, max_exact_ / of_range, q),
                  powers(max_distance_ / of_range, q, max_exact_ / of_n, p));
}

int64_t Buckets::whole_if_large(int64_t n) const {
  const double value = value_if_large(n);
  if (std::isinf(value)) return std::numeric_limits<int64_t>::min();
  const double nearest = std::nearbyint(value);
  if (n <= max_exact_ || std::abs(value - nearest) >= kTie) return static_cast<int64_t>(value);
  const auto whole = static_cast<int64_t>(nearest);
  return reaches(n, whole - max_exact_) ? whole : whole - 1;
}

std::vector<std::pair<int64_t, int64_t>> Buckets::starts() const {
  std::vector<std::pair<int64_t, int64_t>> starts = {{0, 0}};
  for (int64_t n = 1; n <= std::min(max_exact_, per_side_ - 1); ++n) starts.emplace_back(n, n);
  const double per_bucket = log_range_ / static_cast<double>(per_side_ - max_exact_);
  for (int64_t bucket = max_exact_ + 1; bucket < per_side_; ++bucket) {
    const int64_t previous = starts.back().first;
    const double start =
        std::ceil(static_cast<double>(max_exact_) *
                  std::exp((static_cast<double>(bucket - max_exact_) - kTie) * per_bucket));
    const int64_t guess = std::clamp(static_cast<int64_t>(start), previous, max_distance_);
    // Bisection for the first n that reaches the bucket; the guess and its neighbour go first.
    int64_t n = previous, reached = max_distance_;
    for (int64_t probe = guess; n < reached;) {
      if (whole_if_large(probe) >= bucket) {
        reached = probe;
      } else {
        n = probe + 1;
      }
      probe = reached == guess && n < guess ? guess - 1 : n + (reached - n) / 2;
    }
    if (n == previous) {
      starts.back().second = bucket;
    } else {
      starts.emplace_back(n, bucket);
    }
  }
  return starts;
}

ClassMap Buckets::map(int64_t unit, std::optional<int64_t> reach) const {
  const auto sides = starts();
  std::vector<int64_t> first_delta, classes;
  if (reach) {
    classes.push_back(ClassMap::kNone);
    first_delta.push_back(1 - *reach);
  }
  for (size_t i = sides.size(); i-- > 0;) {
    classes.push_back(sides[i].second);
    if (i > 0) first_delta.push_back(1 - unit * sides[i].first);
  }
  if (bidirectional_) {
    for (size_t i = 0; i < sides.size(); ++i) {
      const bool joined = i + 1 < sides.size() && sides[i + 1].first <= 1;  // no future has n = 0
      if (joined) continue;
      first_delta.push_back(unit * std::max<int64_t>(sides[i].first, 1));
      classes.push_back(per_side_ + sides[i].second);
    }
  }
  if (reach) {
    first_delta.push_back(*reach);
    classes.push_back(ClassMap::kNone);
  }
  return ClassMap::thresholds(std::move(first_delta), std::move(classes));
}

}  // namespace relpos::common
