// Products of one sparse layer with one block of W batch columns.
//
// Included once per instruction set, with RLX2_NS (namespace), RLX2_BYTES (vector width) and
// RLX2_TARGET (function attribute) defined, so that one build runs on every CPU. A block is a
// contiguous [features, W] array; a link costs W multiply-adds on one contiguous row of inputs, and
// the W accumulators of an output row stay in registers.

namespace rlx2 {
namespace RLX2_NS {

#define RLX2_INLINE static inline __attribute__((always_inline)) RLX2_TARGET

// The widest vector that divides a block; a block of one column is plain scalar code.
template <typename T, int W>
struct Pack {
  static constexpr int kBytes =
      W * int(sizeof(T)) < RLX2_BYTES ? W * int(sizeof(T)) : RLX2_BYTES;
  typedef T V __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
};
template <typename T>
struct Pack<T, 1> {
  typedef T V;
};

template <typename T>
struct Quad {
  typedef T V __attribute__((vector_size(4 * sizeof(T)), aligned(alignof(T)), may_alias));
};

template <typename T, int W>
struct Shape {
  typedef typename Pack<T, W>::V V;
  static constexpr int kLanes = sizeof(V) / sizeof(T);
  static constexpr int kVectors = W / kLanes;
  // Eight accumulators hide the latency of two multiply-adds per cycle and leave registers free.
  static constexpr int kHeld = kVectors < 8 ? kVectors : 8;
};

template <typename T, typename V>
RLX2_INLINE T Sum(const V& v) {
  constexpr int n = sizeof(V) / sizeof(T);
  if constexpr (n == 1) {
    return *reinterpret_cast<const T*>(&v);
  } else {
    typedef typename Pack<T, n / 2>::V Half;
    const Half* half = reinterpret_cast<const Half*>(&v);
    return Sum<T, Half>(half[0] + half[1]);
  }
}

template <typename T, typename V>
RLX2_INLINE typename Quad<T>::V ToQuad(const V& v) {
  constexpr int n = sizeof(V) / sizeof(T);
  if constexpr (n == 4) {
    return *reinterpret_cast<const typename Quad<T>::V*>(&v);
  } else {
    typedef typename Pack<T, n / 2>::V Half;
    const Half* half = reinterpret_cast<const Half*>(&v);
    return ToQuad<T, Half>(half[0] + half[1]);
  }
}

#if defined(__clang__)
#define RLX2_SHUFFLE(T, a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef int64_t Long4 __attribute__((vector_size(32)));
RLX2_INLINE Int4 Order(float, int i, int j, int k, int l) { return Int4{i, j, k, l}; }
RLX2_INLINE Long4 Order(double, int i, int j, int k, int l) { return Long4{i, j, k, l}; }
#define RLX2_SHUFFLE(T, a, b, i, j, k, l) __builtin_shuffle(a, b, Order(T(), i, j, k, l))
#endif

// (sum a, sum b, sum c, sum d): a transposed reduction, six shuffles for four links.
template <typename T, typename V>
RLX2_INLINE typename Quad<T>::V Sum4(const V (&s)[4]) {
  typedef typename Quad<T>::V Q;
  if constexpr (sizeof(V) < 4 * sizeof(T)) {
    return Q{Sum<T, V>(s[0]), Sum<T, V>(s[1]), Sum<T, V>(s[2]), Sum<T, V>(s[3])};
  } else {
    const Q a = ToQuad<T, V>(s[0]), b = ToQuad<T, V>(s[1]);
    const Q c = ToQuad<T, V>(s[2]), d = ToQuad<T, V>(s[3]);
    const Q ab = RLX2_SHUFFLE(T, a, b, 0, 4, 1, 5) + RLX2_SHUFFLE(T, a, b, 2, 6, 3, 7);
    const Q cd = RLX2_SHUFFLE(T, c, d, 0, 4, 1, 5) + RLX2_SHUFFLE(T, c, d, 2, 6, 3, 7);
    return RLX2_SHUFFLE(T, ab, cd, 0, 1, 4, 5) + RLX2_SHUFFLE(T, ab, cd, 2, 3, 6, 7);
  }
}

// Sets y to ReLU(acc), or to acc where gate > 0 and else 0, or to acc. ReLU propagates NaN.
template <typename T, typename V, int N>
RLX2_INLINE void Store(V (&acc)[N], const T* gate, bool relu, T* y) {
  if (relu) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) acc[j] = acc[j] <= T(0) ? V{} : acc[j];
  } else if (gate) {
    const V* open = reinterpret_cast<const V*>(gate);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) acc[j] = open[j] > T(0) ? acc[j] : V{};
  }
  V* out = reinterpret_cast<V*>(y);
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) out[j] = acc[j];
}

// Product for R fully connected rows starting at r: loads each input once for all rows and needs no
// indices. Sums in the same order as Product.
template <typename T, int W, int R>
RLX2_INLINE void FullRows(const Links<T>& m, int64_t r, const T* bias, const T* x, const T* gate,
                          bool relu, T* y) {
  typedef typename Shape<T, W>::V V;
  constexpr int kVectors = Shape<T, W>::kVectors, kHeld = kVectors < 4 ? kVectors : 4;
  for (int held = 0; held < kVectors; held += kHeld) {
    V acc[R][kHeld];
#pragma GCC unroll 8
    for (int q = 0; q < R; ++q) {
#pragma GCC unroll 8
      for (int j = 0; j < kHeld; ++j) acc[q][j] = V{} + (bias ? bias[r + q] : T(0));
    }
    const V* in = reinterpret_cast<const V*>(x) + held;
    const T* value = m.value + r * m.inputs;
    for (int64_t k = 0; k < m.inputs; ++k, in += kVectors) {
#pragma GCC unroll 8
      for (int q = 0; q < R; ++q) {
#pragma GCC unroll 8
        for (int j = 0; j < kHeld; ++j) acc[q][j] += value[q * m.inputs + k] * in[j];
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < R; ++q) {
      const int64_t at = (r + q) * W + held * Shape<T, W>::kLanes;
      Store<T, V, kHeld>(acc[q], gate ? gate + at : nullptr, relu, y + at);
    }
  }
}

// y[r] = epilogue(bias[r] + sum_k value[k] x[index[k]]),  k in [pointer[r], pointer[r + 1]).
// The epilogue is ReLU, or a gate (y where gate > 0, else 0), or nothing.
template <typename T, int W>
RLX2_TARGET void Product(const Links<T>& m, const T* bias, const T* x, const T* gate, bool relu,
                         T* y) {
  typedef Shape<T, W> S;
  typedef typename S::V V;
  int64_t r = 0;
  if (m.pointer[m.rows] == m.rows * m.inputs) {  // dense: as many rows as fit in registers
    constexpr int kRows = RLX2_BYTES == 64 ? 4 : 2;
    for (; r + kRows <= m.rows; r += kRows) FullRows<T, W, kRows>(m, r, bias, x, gate, relu, y);
    for (; r + 2 <= m.rows; r += 2) FullRows<T, W, 2>(m, r, bias, x, gate, relu, y);
  }
  for (; r < m.rows; ++r) {
    for (int held = 0; held < S::kVectors; held += S::kHeld) {
      V acc[S::kHeld];
      const V start = V{} + (bias ? bias[r] : T(0));
#pragma GCC unroll 8
      for (int j = 0; j < S::kHeld; ++j) acc[j] = start;
      for (int32_t k = m.pointer[r], end = m.pointer[r + 1]; k < end; ++k) {
        const V* in = reinterpret_cast<const V*>(x + int64_t(m.index[k]) * W) + held;
        const T value = m.value[k];
#pragma GCC unroll 8
        for (int j = 0; j < S::kHeld; ++j) acc[j] += value * in[j];
      }
      const int64_t at = r * W + held * S::kLanes;
      Store<T, V, S::kHeld>(acc, gate ? gate + at : nullptr, relu, y + at);
    }
  }
}

// dvalue[k] += <g[r], x[index[k]]> for the links k of row r;  dbias[r] += sum g[r].
template <typename T, int W>
RLX2_TARGET void Sampled(const Links<T>& m, const T* x, const T* g, T* dvalue, T* dbias) {
  typedef Shape<T, W> S;
  typedef typename S::V V;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int held = 0; held < S::kVectors; held += S::kHeld) {
      const V* row = reinterpret_cast<const V*>(g + r * W) + held;
      V grad[S::kHeld];
      V total{};
#pragma GCC unroll 8
      for (int j = 0; j < S::kHeld; ++j) {
        grad[j] = row[j];
        total += grad[j];
      }
      dbias[r] += Sum<T, V>(total);
      int32_t k = m.pointer[r];
      const int32_t end = m.pointer[r + 1];
      for (; k + 4 <= end; k += 4) {
        V acc[4];
        const V* in[4];
        for (int q = 0; q < 4; ++q) {
          in[q] = reinterpret_cast<const V*>(x + int64_t(m.index[k + q]) * W) + held;
          acc[q] = grad[0] * in[q][0];
        }
#pragma GCC unroll 8
        for (int j = 1; j < S::kHeld; ++j) {
          for (int q = 0; q < 4; ++q) acc[q] += grad[j] * in[q][j];
        }
        typedef typename Quad<T>::V Q;
        *reinterpret_cast<Q*>(dvalue + k) += Sum4<T, V>(acc);
      }
      for (; k < end; ++k) {
        const V* in = reinterpret_cast<const V*>(x + int64_t(m.index[k]) * W) + held;
        V acc = grad[0] * in[0];
#pragma GCC unroll 8
        for (int j = 1; j < S::kHeld; ++j) acc += grad[j] * in[j];
        dvalue[k] += Sum<T, V>(acc);
      }
    }
  }
}

#undef RLX2_SHUFFLE
#undef RLX2_INLINE

}  // namespace RLX2_NS
}  // namespace rlx2
