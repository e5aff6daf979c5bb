// Products of dense matrices, C = A B, in tiles whose accumulators stay in registers.
//
// Included once per instruction set, with RLX2_NS, RLX2_BYTES and RLX2_TARGET defined as for
// simd.h. A tile is M rows by N vectors of C over the whole depth, so every sum has one fixed
// order. B is copied into panels of a tile's width first, unless too few rows would use the copy.

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

// Finishes a tile [rows, N vectors]; by way of memory, which is cheap beside the products and keeps
// the code of each tile small. Only the first `columns` columns of C are there.
template <typename T, int N>
RLX2_TARGET void Store(const T* tile, int rows, int64_t columns, const Finish<T>& f, int64_t row,
                       int64_t column) {
  typedef typename Tiling<T>::V V;
  constexpr int kLanes = Tiling<T>::kLanes;
  const bool whole = columns == N * kLanes;
  for (int r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * f.ldc + column;
    for (int j = 0; j < (whole ? N : 0); ++j) {
      V v = reinterpret_cast<const V*>(tile)[r * N + j];
      V* out = reinterpret_cast<V*>(f.c + at) + j;
      if (f.bias) v += reinterpret_cast<const V*>(f.bias + column)[j];
      if (f.relu) v = v <= T(0) ? V{} : v;
      if (f.gate) v = reinterpret_cast<const V*>(f.gate + at)[j] > T(0) ? v : V{};
      if (f.add) v += *out;
      *out = v;
    }
    for (int64_t j = 0; j < (whole ? 0 : columns); ++j) {
      T v = tile[r * N * kLanes + j];
      if (f.bias) v += f.bias[column + j];
      if (f.relu) v = v <= T(0) ? T(0) : v;
      if (f.gate) v = f.gate[at + j] > T(0) ? v : T(0);
      if (f.add) v += f.c[at + j];
      f.c[at + j] = v;
    }
  }
}

// One tile. A is [rows, depth] with rows `lda` apart or, with kDown, [depth, rows]; B has `ldb`
// between its rows.
template <typename T, int M, int N, bool kDown>
RLX2_TARGET __attribute__((noinline)) void Tile(int64_t depth, const T* a, int64_t lda, const T* b,
                                                int64_t ldb, int64_t columns,
                                                const Finish<T>& finish, int64_t row,
                                                int64_t column) {
  typedef typename Tiling<T>::V V;
  constexpr int kLanes = Tiling<T>::kLanes;
  V acc[M][N];
#pragma GCC unroll 16
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) acc[r][j] = V{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    V in[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) in[j] = reinterpret_cast<const V*>(b)[j];
#pragma GCC unroll 16
    for (int r = 0; r < M; ++r) {
      const T value = kDown ? a[r] : a[r * lda];
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) acc[r][j] += value * in[j];
    }
    a += kDown ? lda : 1;
    b += ldb;
  }
  T tile[M * N * kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) reinterpret_cast<V*>(tile)[r * N + j] = acc[r][j];
  }
  Store<T, N>(tile, M, columns, finish, row, column);
}

// All rows of one panel of columns.
template <typename T, int N, bool kDown>
RLX2_TARGET void Panel(const Matrices<T>& m, const T* b, int64_t ldb, int64_t column,
                       int64_t columns) {
  constexpr int kRows = Tiling<T>::kRows;
  const int64_t step = kDown ? 1 : m.lda;
  int64_t r = 0;
  for (; r + kRows <= m.rows; r += kRows) {
    Tile<T, kRows, N, kDown>(m.depth, m.a + r * step, m.lda, b, ldb, columns, m.finish, r, column);
  }
  for (; r + 4 <= m.rows; r += 4) {
    Tile<T, 4, N, kDown>(m.depth, m.a + r * step, m.lda, b, ldb, columns, m.finish, r, column);
  }
  for (; r + 2 <= m.rows; r += 2) {
    Tile<T, 2, N, kDown>(m.depth, m.a + r * step, m.lda, b, ldb, columns, m.finish, r, column);
  }
  for (; r < m.rows; ++r) {
    Tile<T, 1, N, kDown>(m.depth, m.a + r * step, m.lda, b, ldb, columns, m.finish, r, column);
  }
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
RLX2_TARGET void PackPanel(const Matrices<T>& m, int64_t column, int64_t columns, T* to) {
  typedef typename Tiling<T>::V V;
  constexpr int kWidth = N * Tiling<T>::kLanes;
  if (!m.b_transposed) {
    const T* from = m.b + column;
    if (columns == kWidth) {
      for (int64_t k = 0; k < m.depth; ++k) {
        for (int j = 0; j < N; ++j) {
          reinterpret_cast<V*>(to + k * kWidth)[j] =
              reinterpret_cast<const V*>(from + k * m.ldb)[j];
        }
      }
      return;
    }
    for (int64_t k = 0; k < m.depth; ++k) {
      for (int64_t j = 0; j < kWidth; ++j) {
        to[k * kWidth + j] = j < columns ? from[k * m.ldb + j] : T(0);
      }
    }
    return;
  }
  const T* from = m.b + column * m.ldb;
  int64_t k = 0;
  if (columns == kWidth) {
    for (; k + 4 <= m.depth; k += 4) {
      for (int j = 0; j < kWidth; j += 4) {
        Transpose4<T>(from + j * m.ldb + k, m.ldb, to + k * kWidth + j, kWidth);
      }
    }
  }
  for (; k < m.depth; ++k) {
    for (int64_t j = 0; j < kWidth; ++j) {
      to[k * kWidth + j] = j < columns ? from[j * m.ldb + k] : T(0);
    }
  }
}

template <typename T, int N>
RLX2_TARGET void Columns(const Matrices<T>& m, int64_t column, int64_t columns, T* scratch) {
  constexpr int kWidth = N * Tiling<T>::kLanes;
  // Few rows: the copy would cost more than reading B where it lies.
  const bool direct =
      !m.b_transposed && columns == kWidth && m.rows <= 3 * Tiling<T>::kRows;
  if (!direct) PackPanel<T, N>(m, column, columns, scratch);
  const T* b = direct ? m.b + column : scratch;
  const int64_t ldb = direct ? m.ldb : kWidth;
  if (m.a_down) {
    Panel<T, N, true>(m, b, ldb, column, columns);
  } else {
    Panel<T, N, false>(m, b, ldb, column, columns);
  }
}

// C = A B with the epilogue of `m.finish`; `scratch` holds depth * 64 elements.
template <typename T>
RLX2_TARGET void Multiply(const Matrices<T>& m, T* scratch) {
  constexpr int kLanes = Tiling<T>::kLanes;
  constexpr int kColumns = Tiling<T>::kColumns;
  for (int64_t n = 0; n < m.columns; n += kColumns) {
    const int64_t left = m.columns - n;
    if (left <= kLanes) {
      Columns<T, 1>(m, n, left, scratch);
    } else {
      Columns<T, 2>(m, n, std::min<int64_t>(left, kColumns), scratch);
    }
  }
}

// to[j] (+)= sum over rows of from[r, j].
template <typename T>
RLX2_TARGET void SumRows(int64_t rows, int64_t columns, const T* from, bool add, T* to) {
  if (!add) std::fill_n(to, columns, T(0));
  typedef typename Tiling<T>::V V;
  constexpr int kLanes = Tiling<T>::kLanes;
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    V sum{};
    for (int64_t r = 0; r < rows; ++r) {
      sum += *reinterpret_cast<const V*>(from + r * columns + j);
    }
    *reinterpret_cast<V*>(to + j) += sum;
  }
  for (; j < columns; ++j) {
    T sum(0);
    for (int64_t r = 0; r < rows; ++r) sum += from[r * columns + j];
    to[j] += sum;
  }
}

#undef RLX2_SHUFFLE
#undef RLX2_INLINE

}  // namespace RLX2_NS
}  // namespace rlx2
