// Measures this CPU's peak arithmetic: multiply-adds per second of one thread.
//
// Included once per instruction set (each_isa.h), after simd.h.

namespace rlx2 {
namespace RLX2_NS {

// Accumulates twelve independent sums of float vectors `turns` times, all in registers or, with
// kLoad, with one factor from a row of 4096 floats. Returns a sum to prevent dead-code elimination.
template <bool kLoad>
RLX2_TARGET __attribute__((noinline)) float MultiplyAdds(int64_t turns, const float* row) {
  typedef float V __attribute__((vector_size(RLX2_BYTES), aligned(4), may_alias));
  constexpr int kSums = 12, kLanes = RLX2_BYTES / 4;
  V sums[kSums] = {};
  const V held = V{} + row[0], factor = V{} + row[1];
  for (int i = 0; i < kSums; ++i) sums[i] += row[i + 2];
  for (int64_t t = 0; t < turns; ++t) {
    const V* in = reinterpret_cast<const V*>(row + t % 16 * kSums * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sums[i] = kLoad ? sums[i] + factor * in[i] : sums[i] * factor + held;
    }
  }
  float total = 0;
  for (int i = 0; i < kSums; ++i) {
    for (int j = 0; j < kLanes; ++j) total += sums[i][j];
  }
  return total;
}

}  // namespace RLX2_NS
}  // namespace rlx2
