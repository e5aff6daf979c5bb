// A compact multilayer perceptron: forward and backward passes over the batch, block by block. No
// dependency on XLA, so that the same code runs under the sanitizers.
//
// Layer l maps in_l to out_l features:  a_{l+1} = relu(W_l a_l + b_l)  (the last one without
// ReLU unless asked). All live values of all layers, then all biases, lie in one vector `flat`.
// Activations of a layer are stored in blocks: columns [c, c + W) of the batch as [features, W] at
// offset c * features, where W is 64 for as long as possible, then 16, 4 and 1.

#ifndef RLX2_COMPACT_MLP_H_
#define RLX2_COMPACT_MLP_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace rlx2 {

// Row r holds the links [pointer[r], pointer[r + 1]): a value and one of `inputs` rows of the other
// operand, each at most once and in order.
template <typename T>
struct Links {
  int64_t rows, inputs;
  const int32_t* pointer;
  const int32_t* index;
  const T* value;
};

// Static description of a network; offsets are those of layer l in each concatenated array.
struct Spec {
  int64_t layers = 0;
  int64_t batch = 0;
  bool relu_last = false;
  bool feature_major = false;  // layout of x, y and their gradients; else [batch, features]
  std::vector<int64_t> width;  // layers + 1 entries
  std::vector<int64_t> nnz;    // capacity of each layer
  std::vector<int64_t> link, rowptr, colptr, bias, act, grad;
  int64_t links = 0, rowptrs = 0, colptrs = 0, parameters = 0, acts = 0, grads = 0, widest = 0;

  void Finish() {
    for (int64_t l = 0; l < layers; ++l) {
      link.push_back(links);
      rowptr.push_back(rowptrs);
      colptr.push_back(colptrs);
      act.push_back(acts);
      grad.push_back(grads);
      links += nnz[l];
      rowptrs += width[l + 1] + 1;
      colptrs += width[l] + 1;
      acts += batch * width[l];
      grads += batch * width[l + 1];
    }
    act.push_back(acts);  // the output is kept only if it has a ReLU to differentiate
    if (relu_last) acts += batch * width[layers];
    parameters = links;
    for (int64_t l = 0; l < layers; ++l) {
      bias.push_back(parameters);
      parameters += width[l + 1];
    }
    widest = *std::max_element(width.begin(), width.end());
  }
};

// One lane's index arrays (see layout.py). colptr, rows and perm serve the backward pass only.
struct Index {
  const int32_t* rowptr;
  const int32_t* cols;
  const int32_t* colptr = nullptr;
  const int32_t* rows = nullptr;
  const int32_t* perm = nullptr;
};

// Whether every entry lies in [0, limit), so that no index is out of bounds. One pass of integer OR
// per call, about 1% of the cost of the products.
inline bool InRange(const int32_t* p, int64_t n, int64_t limit) {
  const uint32_t top = static_cast<uint32_t>(limit) - 1u;
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t v = static_cast<uint32_t>(p[i]);
    bad |= v | (top - v);
  }
  return (bad >> 31) == 0;
}

inline bool ValidPointers(const int32_t* p, int64_t rows, int64_t nnz) {
  if (p[0] != 0 || !InRange(p, rows + 1, nnz + 1)) return false;
  int32_t bad = 0;
  for (int64_t r = 0; r < rows; ++r) bad |= p[r + 1] - p[r];
  return bad >= 0;
}

inline bool Valid(const Spec& s, const Index& ix) {
  for (int64_t l = 0; l < s.layers; ++l) {
    const int64_t in = s.width[l], out = s.width[l + 1], n = s.nnz[l];
    if (!ValidPointers(ix.rowptr + s.rowptr[l], out, n)) return false;
    if (!InRange(ix.cols + s.link[l], n, in)) return false;
    if (ix.colptr == nullptr) continue;
    if (!ValidPointers(ix.colptr + s.colptr[l], in, n)) return false;
    if (!InRange(ix.rows + s.link[l], n, out)) return false;
    if (!InRange(ix.perm + s.link[l], n, n)) return false;
  }
  return true;
}

// This thread's scratch of n elements, aligned to a cache line like XLA's arrays: vectors that
// straddle cache lines cost a third more.
template <typename T>
T* Aligned(int64_t n) {
  constexpr size_t kLine = 64;
  thread_local std::vector<T> kept;
  if (kept.size() < n + kLine / sizeof(T)) kept.resize(n + kLine / sizeof(T));
  const auto at = reinterpret_cast<uintptr_t>(kept.data());
  return reinterpret_cast<T*>((at + kLine - 1) / kLine * kLine);
}

// Calls f(first column, constant W) for the blocks that make up columns [begin, end).
template <int W>
struct Width {
  static constexpr int value = W;
};
template <typename F>
void ForBlocks(int64_t begin, int64_t end, F f) {
  int64_t c = begin;
  for (; c + 64 <= end; c += 64) f(c, Width<64>());
  for (; c + 16 <= end; c += 16) f(c, Width<16>());
  for (; c + 4 <= end; c += 4) f(c, Width<4>());
  for (; c < end; ++c) f(c, Width<1>());
}

// Copies between a caller's [features, batch] or [batch, features] and one block. Transposes in
// tiles of one cache line of features, for locality.
template <typename T, int W, typename F>
void Tiles(int64_t features, F copy) {
  constexpr int64_t kTile = 64 / sizeof(T);
  int64_t f = 0;
  for (; f + kTile <= features; f += kTile) {
    for (int w = 0; w < W; ++w) {
      for (int64_t i = f; i < f + kTile; ++i) copy(i, w);
    }
  }
  for (int w = 0; w < W; ++w) {
    for (int64_t i = f; i < features; ++i) copy(i, w);
  }
}
template <typename T, int W>
void PackBlock(const T* from, const Spec& s, int64_t features, int64_t c, T* to) {
  if (s.feature_major) {
    for (int64_t f = 0; f < features; ++f) {
      for (int w = 0; w < W; ++w) to[f * W + w] = from[f * s.batch + c + w];
    }
  } else {
    Tiles<T, W>(features, [&](int64_t f, int w) { to[f * W + w] = from[(c + w) * features + f]; });
  }
}
template <typename T, int W>
void UnpackBlock(const T* from, const Spec& s, int64_t features, int64_t c, T* to) {
  if (s.feature_major) {
    for (int64_t f = 0; f < features; ++f) {
      for (int w = 0; w < W; ++w) to[f * s.batch + c + w] = from[f * W + w];
    }
  } else {
    Tiles<T, W>(features, [&](int64_t f, int w) { to[(c + w) * features + f] = from[f * W + w]; });
  }
}

}  // namespace rlx2

// The same kernels, once per instruction set.
#define RLX2_KERNELS "simd.h"
#include "each_isa.h"
#undef RLX2_KERNELS

namespace rlx2 {

enum class Isa : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

inline Isa BestIsa() {
#ifdef RLX2_X86
  __builtin_cpu_init();
  const bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  if (fma) return Isa::kAvx2;
#endif
  return Isa::kBaseline;
}

// The current set: the best one, or a lower one selected by a test.
inline Isa& CurrentIsa() {
  static Isa isa = BestIsa();
  return isa;
}

template <typename T, int W>
void Product(const Links<T>& m, const T* bias, const T* x, const T* gate, bool relu, T* y) {
  switch (CurrentIsa()) {
#ifdef RLX2_X86
    case Isa::kAvx512:
      return avx512::Product<T, W>(m, bias, x, gate, relu, y);
    case Isa::kAvx2:
      return avx2::Product<T, W>(m, bias, x, gate, relu, y);
#endif
    default:
      return baseline::Product<T, W>(m, bias, x, gate, relu, y);
  }
}

template <typename T, int W>
void Sampled(const Links<T>& m, const T* x, const T* g, T* dvalue, T* dbias) {
  switch (CurrentIsa()) {
#ifdef RLX2_X86
    case Isa::kAvx512:
      return avx512::Sampled<T, W>(m, x, g, dvalue, dbias);
    case Isa::kAvx2:
      return avx2::Sampled<T, W>(m, x, g, dvalue, dbias);
#endif
    default:
      return baseline::Sampled<T, W>(m, x, g, dvalue, dbias);
  }
}

// y of the batch columns [begin, end) and, if `acts` is given, the layer inputs to keep.
template <typename T>
void Forward(const Spec& s, const Index& ix, const T* flat, const T* x, int64_t begin, int64_t end,
             T* y, T* acts) {
  T* scratch = Aligned<T>(2 * 64 * s.widest);
  ForBlocks(begin, end, [&](int64_t c, auto width) {
    constexpr int W = decltype(width)::value;
    const auto slot = [&](int64_t l) {
      const bool kept = acts != nullptr && (l < s.layers || s.relu_last);
      return kept ? acts + s.act[l] + c * s.width[l] : scratch + (l % 2) * 64 * s.widest;
    };
    PackBlock<T, W>(x, s, s.width[0], c, slot(0));
    for (int64_t l = 0; l < s.layers; ++l) {
      const Links<T> m{s.width[l + 1], s.width[l], ix.rowptr + s.rowptr[l], ix.cols + s.link[l],
                       flat + s.link[l]};
      const bool relu = l + 1 < s.layers || s.relu_last;
      Product<T, W>(m, flat + s.bias[l], slot(l), nullptr, relu, slot(l + 1));
    }
    UnpackBlock<T, W>(slot(s.layers), s, s.width[s.layers], c, y);
  });
}

// Values of every layer from `first` on, in the order of the transpose: links.
template <typename T>
void Transpose(const Spec& s, const Index& ix, const T* flat, int64_t first, T* transposed) {
  for (int64_t l = first; l < s.layers; ++l) {
    const int32_t* perm = ix.perm + s.link[l];
    const T* value = flat + s.link[l];
    T* to = transposed + s.link[l];
    for (int64_t k = 0; k < s.nnz[l]; ++k) to[k] = value[perm[k]];
  }
}

// Gradients of the batch columns [begin, end): adds to `dflat` (if given), writes `dx` and the
// output gradients of every layer `grads` (if given). `transposed`: see Transpose, from layer 0
// if `dx` is given, else from layer 1.
template <typename T>
void Backward(const Spec& s, const Index& ix, const T* transposed, const T* acts, const T* dy,
              int64_t begin, int64_t end, T* dflat, T* dx, T* grads) {
  T* scratch = Aligned<T>(2 * 64 * s.widest);
  const int64_t first = dx != nullptr ? 0 : 1;  // the lowest layer whose input gradient is needed
  ForBlocks(begin, end, [&](int64_t c, auto width) {
    constexpr int W = decltype(width)::value;
    const auto slot = [&](int64_t l) {  // gradient with respect to the input of layer l
      return grads != nullptr && l > 0 ? grads + s.grad[l - 1] + c * s.width[l]
                                       : scratch + (l % 2) * 64 * s.widest;
    };
    const auto act = [&](int64_t l) { return acts + s.act[l] + c * s.width[l]; };
    PackBlock<T, W>(dy, s, s.width[s.layers], c, slot(s.layers));
    if (s.relu_last) {
      T* g = slot(s.layers);
      const T* gate = act(s.layers);
      for (int64_t i = 0; i < s.width[s.layers] * W; ++i) g[i] = gate[i] > T(0) ? g[i] : T(0);
    }
    for (int64_t l = s.layers - 1; l >= 0; --l) {
      if (dflat != nullptr) {
        const Links<T> m{s.width[l + 1], s.width[l], ix.rowptr + s.rowptr[l], ix.cols + s.link[l],
                         nullptr};
        Sampled<T, W>(m, act(l), slot(l + 1), dflat + s.link[l], dflat + s.bias[l]);
      }
      if (l < first) continue;
      const Links<T> m{s.width[l], s.width[l + 1], ix.colptr + s.colptr[l], ix.rows + s.link[l],
                       transposed + s.link[l]};
      Product<T, W>(m, nullptr, slot(l + 1), l > 0 ? act(l) : nullptr, false, slot(l));
    }
    if (dx != nullptr) UnpackBlock<T, W>(slot(0), s, s.width[0], c, dx);
  });
}

}  // namespace rlx2

#endif  // RLX2_COMPACT_MLP_H_
