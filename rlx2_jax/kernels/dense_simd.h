// Products of dense matrices, C = A B, in tiles whose accumulators stay in registers.
//
// Included once per instruction set, with RLX2_NS, RLX2_BYTES and RLX2_TARGET defined as for
// simd.h. A tile is M rows by N vectors of C over the whole depth, so every sum has a fixed order.
// B is stored in panels of a tile's width, and column-major A in strips of a tile's height. Rows of
// a block of weights that are all 0 are skipped, so non-finite inputs that only meet those weights
// do not propagate.

namespace rlx2 {
namespace RLX2_NS {

#define RLX2_INLINE static inline __attribute__((always_inline)) RLX2_TARGET

#if defined(__clang__)
#define RLX2_SHUFFLE(T, a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define RLX2_SHUFFLE(T, a, b, i, j, k, l) __builtin_shuffle(a, b, Order(T(), i, j, k, l))
#endif

template <typename T>
struct Tiling {
  typedef T V __attribute__((vector_size(RLX2_BYTES), aligned(alignof(T)), may_alias));
  static constexpr int kLanes = RLX2_BYTES / int(sizeof(T));
  static constexpr int kColumns = 2 * kLanes;
  // 6 x 2 accumulators leave room in 16 registers, 12 x 2 in the 32 of AVX-512.
  static constexpr int kRows = RLX2_BYTES == 64 ? 12 : 6;
};

// Applies the epilogue in registers to a tile [M, N vectors] that lies entirely in C.
#define RLX2_EACH(expression)               \
  _Pragma("GCC unroll 16") for (int r = 0; r < M; ++r) \
      _Pragma("GCC unroll 2") for (int j = 0; j < N; ++j) { expression; }
template <typename T, int M, int N>
RLX2_INLINE void StoreWhole(typename Tiling<T>::V (&acc)[M][N], const Finish<T>& f, int64_t row,
                            int64_t column) {
  typedef typename Tiling<T>::V V;
  const auto at = [&](auto* base, int r, int j) {
    return base + (row + r) * f.ldc + column + j * Tiling<T>::kLanes;
  };
  if (f.bias) RLX2_EACH(acc[r][j] += reinterpret_cast<const V*>(f.bias + column)[j]);
  if (f.relu) RLX2_EACH(acc[r][j] = acc[r][j] <= T(0) ? V{} : acc[r][j]);
  if (f.gate) {
    RLX2_EACH(acc[r][j] = *reinterpret_cast<const V*>(at(f.gate, r, j)) > T(0) ? acc[r][j] : V{});
  }
  RLX2_EACH(*reinterpret_cast<V*>(at(f.c, r, j)) = acc[r][j]);
}

// Applies the epilogue in memory to a tile [rows, N vectors] with only `columns` columns in C.
template <typename T, int N>
RLX2_TARGET void StorePart(const T* tile, int rows, int64_t columns, const Finish<T>& f,
                           int64_t row, int64_t column) {
  constexpr int kLanes = Tiling<T>::kLanes;
  for (int r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * f.ldc + column;
    for (int64_t j = 0; j < columns; ++j) {
      T v = tile[r * N * kLanes + j];
      if (f.bias) v += f.bias[column + j];
      if (f.relu) v = v <= T(0) ? T(0) : v;
      if (f.gate) v = f.gate[at + j] > T(0) ? v : T(0);
      f.c[at + j] = v;
    }
  }
}

// One tile over `depth` rows of B: the rows in `live`, with an A of row stride `lda`; or, with
// kDown, all rows, with a strip of A.
template <typename T, int M, int N, bool kDown>
RLX2_TARGET __attribute__((noinline)) void Tile(int64_t depth, const T* a, int64_t lda, const T* b,
                                                const int32_t* live, int64_t columns,
                                                const Finish<T>& finish, int64_t row,
                                                int64_t column) {
  typedef typename Tiling<T>::V V;
  constexpr int kLanes = Tiling<T>::kLanes;
  V acc[M][N];
  RLX2_EACH(acc[r][j] = V{});
  for (int64_t k = 0; k < depth; ++k) {
    V in[N];
    const T* at = kDown ? a + k * M : a + live[k];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) in[j] = reinterpret_cast<const V*>(b)[j];
#pragma GCC unroll 16
    for (int r = 0; r < M; ++r) {
      const T value = kDown ? at[r] : at[r * lda];
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) acc[r][j] += value * in[j];
    }
    b += N * kLanes;
  }
  if (columns == N * kLanes) return StoreWhole<T, M, N>(acc, finish, row, column);
  T tile[M * N * kLanes];
  RLX2_EACH(reinterpret_cast<V*>(tile)[r * N + j] = acc[r][j]);
  StorePart<T, N>(tile, M, columns, finish, row, column);
}

// Calls f(r, height) for tiles that cover all rows.
template <typename T, typename F>
RLX2_INLINE void Strips(int64_t rows, const F& f) {
  constexpr int kRows = Tiling<T>::kRows;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) f(r, std::integral_constant<int, kRows>());
  for (; r + 4 <= rows; r += 4) f(r, std::integral_constant<int, 4>());
  for (; r + 2 <= rows; r += 2) f(r, std::integral_constant<int, 2>());
  for (; r < rows; ++r) f(r, std::integral_constant<int, 1>());
}

// All rows of one panel of columns.
template <typename T, int N, bool kDown>
RLX2_TARGET void Panel(const Gemm<T>& m, const T* b, int64_t column, int64_t columns) {
  const int32_t* live = kDown ? nullptr : m.live + column / kBlock * (m.depth + 1);
  const int64_t depth = kDown ? m.depth : *live++;
  Strips<T>(m.rows, [&](int64_t r, auto height) RLX2_TARGET {
    constexpr int kHeight = decltype(height)::value;
    Tile<T, kHeight, N, kDown>(depth, m.a + r * (kDown ? m.depth : m.lda), m.lda, b, live, columns,
                               m.finish, r, column);
  });
}

// Rows [begin, end) of A [depth, rows] as consecutive strips [depth, height].
template <typename T>
RLX2_TARGET void PackStrips(const T* a, int64_t depth, int64_t rows, int64_t begin, int64_t end,
                            T* to) {
  Strips<T>(rows, [&](int64_t r, auto height) RLX2_TARGET {
    constexpr int kHeight = decltype(height)::value;
    T* strip = to + r * depth;
    for (int64_t k = begin; k < end; ++k) {
      __builtin_memcpy(strip + k * kHeight, a + k * rows + r, kHeight * sizeof(T));
    }
  });
}

// to[j, i] = from[i, j] for 4 x 4 elements.
template <typename T>
RLX2_INLINE void Transpose4(const T* from, int64_t ld_from, T* to, int64_t ld_to) {
  typedef typename Quad<T>::V Q;
  const Q a = *reinterpret_cast<const Q*>(from);
  const Q b = *reinterpret_cast<const Q*>(from + ld_from);
  const Q c = *reinterpret_cast<const Q*>(from + 2 * ld_from);
  const Q d = *reinterpret_cast<const Q*>(from + 3 * ld_from);
  const Q ab = RLX2_SHUFFLE(T, a, b, 0, 4, 1, 5), ab2 = RLX2_SHUFFLE(T, a, b, 2, 6, 3, 7);
  const Q cd = RLX2_SHUFFLE(T, c, d, 0, 4, 1, 5), cd2 = RLX2_SHUFFLE(T, c, d, 2, 6, 3, 7);
  *reinterpret_cast<Q*>(to) = RLX2_SHUFFLE(T, ab, cd, 0, 1, 4, 5);
  *reinterpret_cast<Q*>(to + ld_to) = RLX2_SHUFFLE(T, ab, cd, 2, 3, 6, 7);
  *reinterpret_cast<Q*>(to + 2 * ld_to) = RLX2_SHUFFLE(T, ab2, cd2, 0, 1, 4, 5);
  *reinterpret_cast<Q*>(to + 3 * ld_to) = RLX2_SHUFFLE(T, ab2, cd2, 2, 3, 6, 7);
}

// Columns [column, column + columns) of B as [depth, width], zeros beyond `columns`.
template <typename T, int N>
RLX2_TARGET void PackPanel(const Stored<T>& m, int64_t column, int64_t columns, T* to) {
  typedef typename Tiling<T>::V V;
  constexpr int kWidth = N * Tiling<T>::kLanes;
  const T* from = m.data + column * (m.transposed ? m.ld : 1);
  int64_t k = 0;
  if (columns == kWidth && !m.transposed) {
    for (; k < m.depth; ++k) {
      for (int j = 0; j < N; ++j) {
        reinterpret_cast<V*>(to + k * kWidth)[j] = reinterpret_cast<const V*>(from + k * m.ld)[j];
      }
    }
  } else if (columns == kWidth && kWidth % 4 == 0) {
    for (; k + 4 <= m.depth; k += 4) {
      for (int j = 0; j < kWidth; j += 4) {
        Transpose4<T>(from + j * m.ld + k, m.ld, to + k * kWidth + j, kWidth);
      }
    }
  }
  for (; k < m.depth; ++k) {
    for (int64_t j = 0; j < kWidth; ++j) {
      const T* at = from + (m.transposed ? j * m.ld + k : k * m.ld + j);
      to[k * kWidth + j] = j < columns ? *at : T(0);
    }
  }
}

// B in panels.
template <typename T>
RLX2_TARGET void PackPanels(const Stored<T>& m, T* to) {
  constexpr int kLanes = Tiling<T>::kLanes;
  constexpr int kColumns = Tiling<T>::kColumns;
  for (int64_t n = 0; n < m.columns; n += kColumns) {
    const int64_t left = m.columns - n;
    if (left <= kLanes) {
      PackPanel<T, 1>(m, n, left, to + n * m.depth);
    } else {
      PackPanel<T, 2>(m, n, std::min<int64_t>(left, kColumns), to + n * m.depth);
    }
  }
}

// Moves the nonzero rows of a block of panels to the front and records their indices.
template <typename T>
RLX2_TARGET void KeepLive(int64_t depth, int64_t columns, T* block, int32_t* live) {
  typedef typename Tiling<T>::V V;
  constexpr int kLanes = Tiling<T>::kLanes, kColumns = Tiling<T>::kColumns;
  const int64_t whole = columns / kColumns, rest = columns % kColumns;
  int32_t kept = 0;
  for (int64_t k = 0; k < depth; ++k) {
    if (k == kBlock && kept == kBlock) {  // probably a dense matrix: keep all rows
      for (; k < depth; ++k) live[1 + kept++] = static_cast<int32_t>(k);
      break;
    }
    auto any = V{} != V{};
    const auto move = [&](int64_t panel, int vectors) RLX2_TARGET {
      T* rows = block + panel * kColumns * depth;
      for (int j = 0; j < vectors; ++j) {
        const V v = reinterpret_cast<const V*>(rows + k * vectors * kLanes)[j];
        any |= v != V{};
        reinterpret_cast<V*>(rows + kept * vectors * kLanes)[j] = v;
      }
    };
    for (int64_t p = 0; p < whole; ++p) move(p, 2);
    if (rest > 0) move(whole, rest <= kLanes ? 1 : 2);
    live[1 + kept] = static_cast<int32_t>(k);
    bool found = false;
    for (int i = 0; i < kLanes; ++i) found |= any[i] != 0;
    kept += found;
  }
  live[0] = kept;
}

// One column, C = A b: rows of A against b.
template <typename T>
RLX2_TARGET void Column(const Gemm<T>& m) {
  typedef typename Tiling<T>::V V;
  constexpr int kLanes = Tiling<T>::kLanes;
  for (int64_t r = 0; r < m.rows; ++r) {
    const T* a = m.a + r * m.lda;
    V sums[4] = {};
    int64_t k = 0;
    for (; k + 4 * kLanes <= m.depth; k += 4 * kLanes) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sums[i] += reinterpret_cast<const V*>(a + k)[i] * reinterpret_cast<const V*>(m.b + k)[i];
      }
    }
    const V four = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    T sum(0);
    for (int i = 0; i < kLanes; ++i) sum += four[i];
    for (; k < m.depth; ++k) sum += a[k] * m.b[k];
    StorePart<T, 1>(&sum, 1, 1, m.finish, r, 0);
  }
}

// C = A B with the epilogue of `m.finish`.
template <typename T, bool kDown>
RLX2_TARGET void MultiplyPanels(const Gemm<T>& m) {
  constexpr int kColumns = Tiling<T>::kColumns;
  for (int64_t n = 0; n < m.columns; n += kColumns) {
    const int64_t left = m.columns - n;
    if (left <= Tiling<T>::kLanes) {
      Panel<T, 1, kDown>(m, m.b + n * m.depth, n, left);
    } else {
      Panel<T, 2, kDown>(m, m.b + n * m.depth, n, std::min<int64_t>(left, kColumns));
    }
  }
}
template <typename T>
RLX2_TARGET void Multiply(const Gemm<T>& m) {
  if (m.strips) {
    MultiplyPanels<T, true>(m);
  } else if (m.columns == 1) {
    Column<T>(m);
  } else {
    MultiplyPanels<T, false>(m);
  }
}

// to[j] = sum over rows of weight[r] from[r, j], or of from[r, j] without weights.
template <typename T>
RLX2_TARGET void SumRows(int64_t rows, int64_t columns, const T* from, int64_t ld, const T* weight,
                         T* to) {
  typedef typename Tiling<T>::V V;
  constexpr int kLanes = Tiling<T>::kLanes;
  int64_t j = 0;
  for (; j + 4 * kLanes <= columns; j += 4 * kLanes) {
    V sums[4] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const T w = weight ? weight[r] : T(1);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sums[i] += w * reinterpret_cast<const V*>(from + r * ld + j)[i];
      }
    }
    for (int i = 0; i < 4; ++i) reinterpret_cast<V*>(to + j)[i] = sums[i];
  }
  for (; j < columns; ++j) {
    T sum(0);
    for (int64_t r = 0; r < rows; ++r) sum += (weight ? weight[r] : T(1)) * from[r * ld + j];
    to[j] = sum;
  }
}

#undef RLX2_EACH
#undef RLX2_SHUFFLE
#undef RLX2_INLINE

}  // namespace RLX2_NS
}  // namespace rlx2
