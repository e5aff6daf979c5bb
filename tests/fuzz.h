// What the fuzzing programs share.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "mlp.h"

namespace {

std::mt19937_64 gen;
int64_t Uniform(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(gen);
}

template <typename T>
std::vector<T> RandomVector(int64_t n) {
  std::vector<T> v(n);
  for (T& e : v) e = std::normal_distribution<double>()(gen);
  return v;
}

void Fail(const char* what, double got, double want) {
  std::printf("%s: got %.9g, want %.9g\n", what, got, want);
  std::exit(1);
}
void Close(const char* what, double got, double want, double scale, double eps) {
  if (!(std::fabs(got - want) <= eps * (scale + 1e-30))) Fail(what, got, want);
}

// PROGRAM SEED COUNT: calls f() COUNT times, with the instruction sets of this CPU in turn.
template <typename F>
int Fuzz(int argc, char** argv, const F& f) {
  if (argc != 3) return 2;
  gen.seed(std::atoll(argv[1]));
  const int64_t count = std::atoll(argv[2]);
  const int best = static_cast<int>(rlx2::BestIsa());
  for (int64_t i = 0; i < count; ++i) {
    rlx2::CurrentIsa() = static_cast<rlx2::Isa>(i % (best + 1));
    f();
  }
  std::printf("%lld networks, %d instruction sets\n", static_cast<long long>(count), best + 1);
  return 0;
}

}  // namespace
