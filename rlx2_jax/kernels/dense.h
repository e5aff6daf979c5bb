// A multilayer perceptron of dense layers: forward and backward passes over rows of the batch.
// No dependency on XLA, so that the same code runs under the sanitizers.
//
// Layer l maps in_l to out_l features:  a_{l+1} = relu(a_l W_l + b_l)  (the last one without
// ReLU), with W_l [in, out] and activations [batch, features], as JAX has them.

#ifndef RLX2_COMPACT_DENSE_H_
#define RLX2_COMPACT_DENSE_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "mlp.h"

namespace rlx2 {

// The epilogue of a product before it is stored in C: bias, ReLU, zeros where gate <= 0 (gate has
// the shape of C). ReLU propagates NaN.
template <typename T>
struct Finish {
  T* c;
  int64_t ldc;
  const T* bias = nullptr;
  const T* gate = nullptr;
  bool relu = false;
};

// C [rows, columns] = A B over `depth`. With `strips`, A was packed by PackStrips and B by
// PackPanels. Otherwise A is [rows, depth] with row stride `lda`, and B is a single column, or was
// compacted block by block by KeepLive, which also wrote `live`.
template <typename T>
struct Gemm {
  int64_t rows, columns, depth;
  const T* a;
  int64_t lda;
  bool strips;
  const T* b;
  Finish<T> finish;
  const int32_t* live = nullptr;
};

// Columns of weights or weight gradients per task. Rows of a block of weights that are all 0, which
// are common in sparse networks, are skipped: each block records the number of live rows and their
// indices, depth + 1 numbers.
constexpr int64_t kBlock = 32;
inline int64_t Blocks(int64_t columns) { return (columns + kBlock - 1) / kBlock; }

// B [depth, columns] before packing; `transposed` if stored [columns, depth]. `ld`: stride of the
// stored rows.
template <typename T>
struct Stored {
  int64_t depth, columns;
  const T* data;
  int64_t ld;
  bool transposed;
};

}  // namespace rlx2

#define RLX2_KERNELS "dense_simd.h"
#include "each_isa.h"
#undef RLX2_KERNELS

namespace rlx2 {
namespace dense {

// Room for a packed B of any instruction set, followed by the live rows of its blocks.
inline int64_t PackedSize(int64_t depth, int64_t columns) {
  return Blocks(columns) * (kBlock * depth + depth + 1);
}
template <typename T>
auto LiveOf(T* packed, int64_t depth, int64_t columns) {
  typedef std::conditional_t<std::is_const_v<T>, const int32_t, int32_t> Int;
  return reinterpret_cast<Int*>(packed + Blocks(columns) * kBlock * depth);
}

#ifdef RLX2_X86
#define RLX2_DISPATCH(call)               \
  switch (CurrentIsa()) {                 \
    case Isa::kAvx512:                    \
      return avx512::call;                \
    case Isa::kAvx2:                      \
      return avx2::call;                  \
    default:                              \
      return baseline::call;              \
  }
#else
#define RLX2_DISPATCH(call) return baseline::call;
#endif

template <typename T>
void PackPanels(const Stored<T>& m, T* to) {
  RLX2_DISPATCH(PackPanels<T>(m, to))
}
template <typename T>
void KeepLive(int64_t depth, int64_t columns, T* block, int32_t* live) {
  RLX2_DISPATCH(KeepLive<T>(depth, columns, block, live))
}
template <typename T>
void PackStrips(const T* a, int64_t depth, int64_t rows, int64_t begin, int64_t end, T* to) {
  RLX2_DISPATCH(PackStrips<T>(a, depth, rows, begin, end, to))
}
template <typename T>
void Multiply(const Gemm<T>& m) {
  RLX2_DISPATCH(Multiply<T>(m))
}
template <typename T>
void SumRows(int64_t rows, int64_t columns, const T* from, int64_t ld, const T* weight, T* to) {
  RLX2_DISPATCH(SumRows<T>(rows, columns, from, ld, weight, to))
}
#undef RLX2_DISPATCH

// The pointers of one network of one lane: per layer, and per hidden layer for `acts`.
template <typename T>
struct Net {
  const T* x;
  std::vector<const T*> kernel, bias;
  std::vector<T*> acts;  // outputs of the hidden layers, [batch, features]
  std::vector<T*> dkernel, dbias;
};

// The columns of block `block` out of `all`; columns <= 0 if the block is out of range.
struct Columns {
  int64_t first, columns;
  Columns(int64_t block, int64_t all)
      : first(block * kBlock), columns(std::min(kBlock, all - first)) {}
};

// Packs the live rows of block `block` of B, at their position in PackPanels of all of B.
template <typename T>
void PackBlock(const Stored<T>& m, int64_t block, T* to) {
  const Columns c(block, m.columns);
  if (c.columns <= 0) return;
  const T* from = m.data + c.first * (m.transposed ? m.ld : 1);
  T* panels = to + c.first * m.depth;
  PackPanels<T>({m.depth, c.columns, from, m.ld, m.transposed}, panels);
  int32_t* live = LiveOf(to, m.depth, m.columns) + block * (m.depth + 1);
  KeepLive<T>(m.depth, c.columns, panels, live);
}

// A forward pass: Pack every block of columns, then Rows for all parts of the batch, sharing one
// scratch.
template <typename T>
struct Forward {
  const std::vector<int64_t>& width;
  std::vector<int64_t> packed;  // offset of each layer's weights in the scratch
  int64_t size = 0, blocks = 0;

  explicit Forward(const std::vector<int64_t>& width) : width(width) {
    for (size_t l = 0; l + 1 < width.size(); ++l) {
      packed.push_back(size);
      size += PackedSize(width[l], width[l + 1]);
      blocks = std::max(blocks, Blocks(width[l + 1]));
    }
  }

  void Pack(const Net<T>& net, T* scratch, int64_t block) const {
    for (size_t l = 0; l < packed.size(); ++l) {
      if (width[l + 1] == 1) continue;
      PackBlock<T>({width[l], width[l + 1], net.kernel[l], width[l + 1], false}, block,
                   scratch + packed[l]);
    }
  }

  // Rows [begin, end) of y and of the kept activations (where `net.acts` is not empty).
  void Rows(const Net<T>& net, const T* scratch, int64_t begin, int64_t end, T* y) const {
    const size_t layers = packed.size();
    const int64_t rows = end - begin;
    thread_local std::vector<T> between[2];
    const T* a = net.x + begin * width[0];
    for (size_t l = 0; l < layers; ++l) {
      T* out = y + begin * width[l + 1];
      if (l + 1 < layers && !net.acts.empty()) {
        out = net.acts[l] + begin * width[l + 1];
      } else if (l + 1 < layers) {
        std::vector<T>& s = between[l % 2];
        if (static_cast<int64_t>(s.size()) < rows * width[l + 1]) s.resize(rows * width[l + 1]);
        out = s.data();
      }
      const T* b = width[l + 1] == 1 ? net.kernel[l] : scratch + packed[l];
      Multiply<T>({rows, width[l + 1], width[l], a, width[l], false, b,
                   {out, width[l + 1], net.bias[l], nullptr, l + 1 < layers},
                   width[l + 1] == 1 ? nullptr : LiveOf(b, width[l], width[l + 1])});
      a = out;
    }
  }
};

// A backward pass: Pack every block of columns, then Rows for all parts of the batch, then Weights
// of every block, sharing one scratch. Sums over the batch have a fixed order, for any number of
// threads.
template <typename T>
struct Backward {
  const std::vector<int64_t>& width;
  const int64_t batch, layers;
  const bool need_params, need_dx;
  // Offsets of each layer's W', pre-activation gradient, and input (in strips).
  std::vector<int64_t> packed, slope, strips;
  int64_t size = 0, packs = 0, blocks = 0;

  Backward(const std::vector<int64_t>& width, int64_t batch, bool need_params, bool need_dx)
      : width(width),
        batch(batch),
        layers(static_cast<int64_t>(width.size()) - 1),
        need_params(need_params),
        need_dx(need_dx) {
    const auto take = [&](std::vector<int64_t>& to, int64_t n) {
      to.push_back(size);
      size += n;
    };
    for (int64_t l = 0; l < layers; ++l) {
      take(packed, l > 0 || need_dx ? PackedSize(width[l + 1], width[l]) : 0);
      take(slope, l + 1 < layers ? batch * width[l + 1] : 0);
      take(strips, Stripped(l) ? batch * width[l] : 0);
      if (l > 0 || need_dx) packs = std::max(packs, Blocks(width[l]));
      if (need_params) blocks = std::max(blocks, Blocks(width[l + 1]));
    }
  }

  void Pack(const Net<T>& net, T* scratch, int64_t block) const {
    for (int64_t l = need_dx ? 0 : 1; l < layers; ++l) {
      if (width[l] == 1) continue;
      PackBlock<T>({width[l + 1], width[l], net.kernel[l], width[l + 1], true}, block,
                   scratch + packed[l]);
    }
  }

  // Rows [begin, end) of every layer's gradient and, if wanted, of dx.
  void Rows(const Net<T>& net, T* scratch, const T* dy, int64_t begin, int64_t end, T* dx) const {
    for (int64_t l = layers - 1; l >= 0; --l) {
      const T* a = l > 0 ? net.acts[l - 1] : net.x;
      if (Stripped(l)) PackStrips<T>(a, batch, width[l], begin, end, scratch + strips[l]);
      if (l == 0 && !need_dx) return;
      T* to = (l > 0 ? scratch + slope[l - 1] : dx) + begin * width[l];
      const T* g = Slope(scratch, dy, l) + begin * width[l + 1];
      const T* b = width[l] == 1 ? net.kernel[l] : scratch + packed[l];
      Multiply<T>({end - begin, width[l], width[l + 1], g, width[l + 1], false, b,
                   {to, width[l], nullptr, l > 0 ? a + begin * width[l] : nullptr, false},
                   width[l] == 1 ? nullptr : LiveOf(b, width[l + 1], width[l])});
    }
  }

  // Columns of block `block` of every layer's weight and bias gradients.
  void Weights(const Net<T>& net, const T* scratch, const T* dy, int64_t block) const {
    thread_local std::vector<T> panels;
    for (int64_t l = 0; l < layers; ++l) {
      const int64_t in = width[l], out = width[l + 1];
      const auto [first, columns] = Columns(block, out);
      if (columns <= 0) continue;
      const T* g = Slope(scratch, dy, l) + first;
      SumRows<T>(batch, columns, g, out, nullptr, net.dbias[l] + first);
      if (!Stripped(l)) {
        SumRows<T>(batch, in, l > 0 ? net.acts[l - 1] : net.x, in, g, net.dkernel[l]);
        continue;
      }
      const int64_t need = PackedSize(batch, columns);
      if (static_cast<int64_t>(panels.size()) < need) panels.resize(need);
      PackPanels<T>({batch, columns, g, out, false}, panels.data());
      Multiply<T>({in, columns, batch, scratch + strips[l], in, true, panels.data(),
                   {net.dkernel[l] + first, out, nullptr, nullptr, false}});
    }
  }

 private:
  // The weights of a single output are weighted sums of rows: no product, no strips.
  bool Stripped(int64_t l) const { return need_params && width[l + 1] > 1; }
  const T* Slope(const T* scratch, const T* dy, int64_t l) const {
    return l + 1 < layers ? scratch + slope[l] : dy;
  }
};

}  // namespace dense
}  // namespace rlx2

#endif  // RLX2_COMPACT_DENSE_H_
