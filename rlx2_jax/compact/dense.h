// A multilayer perceptron of dense layers: forward and backward passes over rows of the batch.
// No dependency on XLA, so that the same code runs under the sanitizers.
//
// Layer l maps in_l to out_l features:  a_{l+1} = relu(a_l W_l + b_l)  (the last one without
// ReLU), with W_l [in, out] and activations [batch, features], as JAX has them.

#ifndef RLX2_COMPACT_DENSE_H_
#define RLX2_COMPACT_DENSE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "mlp.h"

namespace rlx2 {

// What becomes of a product before it is stored in C: plus bias, ReLU, kept where gate > 0 (gate
// has the shape of C), added to what is there. NaN passes ReLU.
template <typename T>
struct Finish {
  T* c;
  int64_t ldc;
  const T* bias = nullptr;
  const T* gate = nullptr;
  bool relu = false;
  bool add = false;
};

// C [rows, columns] = A B over `depth`; A is stored [depth, rows] with `a_down`, B [columns,
// depth] with `b_transposed`. `lda`, `ldb`: distance of their stored rows.
template <typename T>
struct Matrices {
  int64_t rows, columns, depth;
  const T* a;
  int64_t lda;
  bool a_down;
  const T* b;
  int64_t ldb;
  bool b_transposed;
  Finish<T> finish;
};

}  // namespace rlx2

#define RLX2_KERNELS "dense_simd.h"
#include "each_isa.h"
#undef RLX2_KERNELS

namespace rlx2 {
namespace dense {

template <typename T>
void Multiply(const Matrices<T>& m) {
  thread_local std::vector<T> panel;
  if (static_cast<int64_t>(panel.size()) < m.depth * 64) panel.resize(m.depth * 64);
  switch (CurrentIsa()) {
#ifdef RLX2_X86
    case Isa::kAvx512:
      return avx512::Multiply<T>(m, panel.data());
    case Isa::kAvx2:
      return avx2::Multiply<T>(m, panel.data());
#endif
    default:
      return baseline::Multiply<T>(m, panel.data());
  }
}

template <typename T>
void SumRows(int64_t rows, int64_t columns, const T* from, bool add, T* to) {
  switch (CurrentIsa()) {
#ifdef RLX2_X86
    case Isa::kAvx512:
      return avx512::SumRows<T>(rows, columns, from, add, to);
    case Isa::kAvx2:
      return avx2::SumRows<T>(rows, columns, from, add, to);
#endif
    default:
      return baseline::SumRows<T>(rows, columns, from, add, to);
  }
}

// The pointers of one network of one lane: per layer, and per hidden layer for `acts`.
template <typename T>
struct Net {
  std::vector<const T*> kernel, bias;
  std::vector<T*> acts;  // outputs of the hidden layers, [batch, features]
  std::vector<T*> dkernel, dbias;
};

// Rows [begin, end) of y and of the kept activations (where `net.acts` is not empty).
template <typename T>
void Forward(const std::vector<int64_t>& width, const Net<T>& net, const T* x, int64_t begin,
             int64_t end, T* y) {
  const size_t layers = width.size() - 1;
  const int64_t rows = end - begin;
  thread_local std::vector<T> scratch[2];
  const T* a = x + begin * width[0];
  for (size_t l = 0; l < layers; ++l) {
    T* out = y + begin * width[l + 1];
    if (l + 1 < layers && !net.acts.empty()) {
      out = net.acts[l] + begin * width[l + 1];
    } else if (l + 1 < layers) {
      std::vector<T>& s = scratch[l % 2];
      if (static_cast<int64_t>(s.size()) < rows * width[l + 1]) s.resize(rows * width[l + 1]);
      out = s.data();
    }
    Multiply<T>({rows, width[l + 1], width[l], a, width[l], false, net.kernel[l], width[l + 1],
                 false, {out, width[l + 1], net.bias[l], nullptr, l + 1 < layers, false}});
    a = out;
  }
}

// Gradients of rows [begin, end): writes (or with `add`, adds to) net.dkernel and net.dbias where
// these are not empty, and writes `dx` where it is given.
template <typename T>
void Backward(const std::vector<int64_t>& width, const Net<T>& net, const T* x, const T* dy,
              int64_t begin, int64_t end, bool add, T* dx) {
  const int64_t layers = static_cast<int64_t>(width.size()) - 1, rows = end - begin;
  thread_local std::vector<T> scratch[2];
  const T* g = dy + begin * width[layers];
  for (int64_t l = layers - 1; l >= 0; --l) {
    const int64_t in = width[l], out = width[l + 1];
    const T* a = (l > 0 ? net.acts[l - 1] : x) + begin * in;
    if (!net.dkernel.empty()) {
      Multiply<T>({in, out, rows, a, in, true, g, out, false,
                   {net.dkernel[l], out, nullptr, nullptr, false, add}});
      SumRows<T>(rows, out, g, add, net.dbias[l]);
    }
    if (l == 0 && dx == nullptr) return;
    std::vector<T>& s = scratch[l % 2];
    if (l > 0 && static_cast<int64_t>(s.size()) < rows * in) s.resize(rows * in);
    T* below = l > 0 ? s.data() : dx + begin * in;
    Multiply<T>({rows, in, out, g, out, false, net.kernel[l], out, true,
                 {below, in, nullptr, l > 0 ? a : nullptr, false, false}});
    g = below;
  }
}

}  // namespace dense
}  // namespace rlx2

#endif  // RLX2_COMPACT_DENSE_H_
