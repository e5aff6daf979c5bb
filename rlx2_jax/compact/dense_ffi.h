// XLA FFI handlers of dense multilayer perceptrons (dense.h), for jax.ffi.
//
//   rlx2_dense_forward (x, (kernel, bias)...) -> (y, acts...)
//   rlx2_dense_backward(x, dy, kernel..., acts...) -> (dx, (dkernel, dbias)...)
//
// `nets` networks of the same sizes see the same x: operands network by network, layer by layer;
// y [nets, batch, out], dx [nets, batch, in], and one [batch, features] of acts per hidden layer.
// Every operand may have leading lane axes; an axis of size 1 is shared by all lanes. acts and the
// gradients of the parameters are all there or none; a dx that is not wanted has size 0.

#ifndef RLX2_COMPACT_DENSE_FFI_H_
#define RLX2_COMPACT_DENSE_FFI_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "dense.h"
#include "lanes.h"

namespace {

// The batch is cut into at most this many parts of at least so many rows. The weight gradients of
// the parts are summed in a fixed order, so that results do not depend on the number of threads.
constexpr int64_t kDenseParts = 4;
constexpr int64_t kDenseRows = 128;

// One operand or result: its numbers, and where each lane's begin.
template <typename T>
struct Operand {
  T* data;
  Slices at;
};

struct DenseSpec {
  std::vector<int64_t> width, lanes;
  int64_t nets, batch, layers, count, parts, rows, work;

  DenseSpec(ffi::Span<const int64_t> widths, int64_t nets, ffi::Span<const int64_t> dims)
      : width(widths.begin(), widths.end()),
        lanes(dims.begin(), dims.end() - 3),
        nets(nets),
        batch(dims[dims.size() - 2]),
        layers(static_cast<int64_t>(widths.size()) - 1),
        count(Count(lanes)) {
    parts = std::clamp<int64_t>(batch / kDenseRows, 1, kDenseParts);
    rows = (batch + parts - 1) / parts;
    work = 0;
    for (int64_t l = 0; l < layers; ++l) work += batch * width[l] * width[l + 1];
    work *= count * nets;
  }

  // Tasks of each network of each lane: one where these alone keep every thread busy.
  int64_t Split(const ffi::ThreadPool& pool) const {
    return count * nets >= pool.num_threads() ? 1 : parts;
  }
};

// Appends the operands that `buffers` (RemainingArgs or RemainingRets) has at [first, last).
template <typename T, typename Buffers>
bool Collect(const Buffers& buffers, int64_t first, int64_t rank, int64_t size,
             const std::vector<int64_t>& lanes, std::vector<Operand<T>>& to) {
  if (first >= static_cast<int64_t>(buffers.size())) return false;
  auto buffer = buffers.template get<ffi::AnyBuffer>(first);
  if (!buffer.has_value()) return false;
  ffi::AnyBuffer b = [&] {
    if constexpr (std::is_same_v<Buffers, ffi::RemainingRets>) {
      return **buffer;
    } else {
      return *buffer;
    }
  }();
  if (b.element_type() != (sizeof(T) == 4 ? ffi::F32 : ffi::F64)) return false;
  Slices at(b.dimensions(), lanes, rank);
  if (!at.ok || at.core != size) return false;
  to.push_back({b.typed_data<T>(), at});
  return true;
}

template <typename T>
ffi::Error DenseForward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs args,
                        ffi::AnyBuffer y, ffi::RemainingRets rets, const DenseSpec& s) {
  const auto& lanes = s.lanes;
  const bool keep = rets.size() > 0;
  RLX2_OPERAND(x, 2, s.batch * s.width.front());
  RLX2_OPERAND(y, 3, s.nets * s.batch * s.width.back());
  std::vector<Operand<T>> params, acts;
  for (int64_t i = 0; i < s.nets * s.layers; ++i) {
    const int64_t in = s.width[i % s.layers], out = s.width[i % s.layers + 1];
    if (!Collect<T>(args, 2 * i, 2, in * out, lanes, params)) return BadShape("a kernel");
    if (!Collect<T>(args, 2 * i + 1, 1, out, lanes, params)) return BadShape("a bias");
  }
  for (int64_t i = 0; keep && i < s.nets * (s.layers - 1); ++i) {
    const int64_t size = s.batch * s.width[i % (s.layers - 1) + 1];
    if (!Collect<T>(rets, i, 2, size, lanes, acts)) return BadShape("acts");
  }
  const int64_t tasks = s.Split(pool);
  Parallel(pool, s.count * s.nets * tasks, s.work, [&](int64_t task) {
    const int64_t net = task / tasks % s.nets, lane = task / tasks / s.nets;
    const int64_t begin = tasks == 1 ? 0 : task % tasks * s.rows;
    const int64_t end = tasks == 1 ? s.batch : std::min(begin + s.rows, s.batch);
    const auto at = [&](const Operand<T>& o) { return o.data + o.at.Offset(lane, lanes); };
    rlx2::dense::Net<T> n;
    for (int64_t l = 0; l < s.layers; ++l) {
      n.kernel.push_back(at(params[2 * (net * s.layers + l)]));
      n.bias.push_back(at(params[2 * (net * s.layers + l) + 1]));
      if (keep && l + 1 < s.layers) n.acts.push_back(at(acts[net * (s.layers - 1) + l]));
    }
    rlx2::dense::Forward<T>(
        s.width, n, x.typed_data<T>() + x_at.Offset(lane, lanes), begin, end,
        y.typed_data<T>() + y_at.Offset(lane, lanes) + net * s.batch * s.width.back());
  });
  return ffi::Error::Success();
}

template <typename T>
ffi::Error DenseBackward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                         ffi::RemainingArgs args, ffi::AnyBuffer dx, ffi::RemainingRets rets,
                         const DenseSpec& s, bool need_dx) {
  const auto& lanes = s.lanes;
  const bool need_params = rets.size() > 0;
  RLX2_OPERAND(x, 2, s.batch * s.width.front());
  RLX2_OPERAND(dy, 3, s.nets * s.batch * s.width.back());
  RLX2_OPERAND(dx, 3, need_dx ? s.nets * s.batch * s.width.front() : 0);
  std::vector<Operand<T>> kernels, acts, grads;
  int64_t size = 0;  // of all parameters of a network
  for (int64_t i = 0; i < s.nets * s.layers; ++i) {
    const int64_t in = s.width[i % s.layers], out = s.width[i % s.layers + 1];
    if (i < s.layers) size += (in + 1) * out;
    if (!Collect<T>(args, i, 2, in * out, lanes, kernels)) return BadShape("a kernel");
    if (!need_params) continue;
    if (!Collect<T>(rets, 2 * i, 2, in * out, lanes, grads)) return BadShape("a gradient");
    if (!Collect<T>(rets, 2 * i + 1, 1, out, lanes, grads)) return BadShape("a gradient");
  }
  for (int64_t i = 0; i < s.nets * (s.layers - 1); ++i) {
    const int64_t own = s.batch * s.width[i % (s.layers - 1) + 1];
    if (!Collect<T>(args, s.nets * s.layers + i, 2, own, lanes, acts)) return BadShape("acts");
  }
  const int64_t tasks = s.Split(pool);
  // Parts that run apart: part 0 writes the output itself, the others `partial`, and the last to
  // finish adds them. Parts that run in turn add to the output at once: the same sums.
  const int64_t extra = need_params ? tasks - 1 : 0;
  std::unique_ptr<T[]> partial(extra > 0 ? new T[s.count * s.nets * extra * size] : nullptr);
  std::unique_ptr<std::atomic<int64_t>[]> left(new std::atomic<int64_t>[s.count * s.nets]);
  for (int64_t i = 0; i < s.count * s.nets; ++i) left[i] = tasks;
  Parallel(pool, s.count * s.nets * tasks, 2 * s.work, [&](int64_t task) {
    const int64_t own = task / tasks, net = own % s.nets, lane = own / s.nets;
    const auto at = [&](const Operand<T>& o) { return o.data + o.at.Offset(lane, lanes); };
    T* others = partial.get() + own * extra * size;
    rlx2::dense::Net<T> n;
    std::vector<T*> out;
    for (int64_t l = 0; l < s.layers; ++l) {
      n.kernel.push_back(at(kernels[net * s.layers + l]));
      if (l + 1 < s.layers) n.acts.push_back(at(acts[net * (s.layers - 1) + l]));
      if (!need_params) continue;
      out.push_back(at(grads[2 * (net * s.layers + l)]));
      out.push_back(at(grads[2 * (net * s.layers + l) + 1]));
      n.dkernel.push_back(nullptr);
      n.dbias.push_back(nullptr);
    }
    for (int64_t part = tasks == 1 ? 0 : task % tasks; part < s.parts; part += tasks) {
      T* next = others + (part - 1) * size;
      for (size_t l = 0; l < n.dkernel.size(); ++l) {
        const bool apart = extra > 0 && part > 0;
        n.dkernel[l] = apart ? next : out[2 * l];
        n.dbias[l] = apart ? next + s.width[l] * s.width[l + 1] : out[2 * l + 1];
        next += (s.width[l] + 1) * s.width[l + 1];
      }
      const int64_t begin = part * s.rows, end = std::min(begin + s.rows, s.batch);
      rlx2::dense::Backward<T>(
          s.width, n, x.typed_data<T>() + x_at.Offset(lane, lanes),
          dy.typed_data<T>() + dy_at.Offset(lane, lanes) + net * s.batch * s.width.back(), begin,
          end, tasks == 1 && part > 0,
          need_dx ? dx.typed_data<T>() + dx_at.Offset(lane, lanes) +
                        net * s.batch * s.width.front()
                  : nullptr);
    }
    if (extra == 0 || left[own].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    for (const T* add = others; add < others + extra * size;) {
      for (int64_t l = 0; l < s.layers; ++l) {
        const int64_t kernel = s.width[l] * s.width[l + 1];
        for (int64_t i = 0; i < kernel; ++i) out[2 * l][i] += add[i];
        add += kernel;
        for (int64_t i = 0; i < s.width[l + 1]; ++i) out[2 * l + 1][i] += add[i];
        add += s.width[l + 1];
      }
    }
  });
  return ffi::Error::Success();
}

// Whether `dims`, [lanes..., nets, batch, features], and the sizes describe networks.
bool DenseFits(ffi::Span<const int64_t> widths, int64_t nets, ffi::Span<const int64_t> dims) {
  bool ok = widths.size() >= 2 && nets >= 1 && dims.size() >= 3;
  for (int64_t w : widths) ok = ok && w >= 1;
  return ok && dims[dims.size() - 3] == nets;
}

ffi::Error DenseForwardImpl(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs args,
                            ffi::Result<ffi::AnyBuffer> y, ffi::RemainingRets rets,
                            ffi::Span<const int64_t> widths, int64_t nets) {
  if (!DenseFits(widths, nets, y->dimensions())) return BadShape("y");
  if (x.element_type() != y->element_type()) return BadShape("an operand (one dtype)");
  const DenseSpec s(widths, nets, y->dimensions());
  if (x.element_type() == ffi::F32) return DenseForward<float>(pool, x, args, *y, rets, s);
  if (x.element_type() == ffi::F64) return DenseForward<double>(pool, x, args, *y, rets, s);
  return ffi::Error::InvalidArgument("rlx2: dtype must be float32 or float64");
}

ffi::Error DenseBackwardImpl(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                             ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> dx,
                             ffi::RemainingRets rets, ffi::Span<const int64_t> widths,
                             int64_t nets, int64_t batch, bool need_dx) {
  const auto lane_dims = dx->dimensions();
  if (lane_dims.size() < 3) return BadShape("dx");
  // A dx that is not wanted still has the lane axes, so the result decides them.
  std::vector<int64_t> dims(lane_dims.begin(), lane_dims.end() - 3);
  dims.insert(dims.end(), {nets, batch, widths.size() ? widths.back() : 0});
  const ffi::Span<const int64_t> shape(dims.data(), dims.size());
  if (!DenseFits(widths, nets, shape)) return BadShape("dx");
  for (const ffi::AnyBuffer* b : {&dy, &*dx}) {
    if (b->element_type() != x.element_type()) return BadShape("an operand (one dtype)");
  }
  const DenseSpec s(widths, nets, shape);
  if (x.element_type() == ffi::F32) {
    return DenseBackward<float>(pool, x, dy, args, *dx, rets, s, need_dx);
  }
  if (x.element_type() == ffi::F64) {
    return DenseBackward<double>(pool, x, dy, args, *dx, rets, s, need_dx);
  }
  return ffi::Error::InvalidArgument("rlx2: dtype must be float32 or float64");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Rlx2DenseForward, DenseForwardImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // x
                                  .RemainingArgs()        // (kernel, bias)...
                                  .Ret<ffi::AnyBuffer>()  // y
                                  .RemainingRets()        // acts...
                                  .Attr<ffi::Span<const int64_t>>("widths")
                                  .Attr<int64_t>("nets"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(Rlx2DenseBackward, DenseBackwardImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // x
                                  .Arg<ffi::AnyBuffer>()  // dy
                                  .RemainingArgs()        // kernel..., acts...
                                  .Ret<ffi::AnyBuffer>()  // dx
                                  .RemainingRets()        // (dkernel, dbias)...
                                  .Attr<ffi::Span<const int64_t>>("widths")
                                  .Attr<int64_t>("nets")
                                  .Attr<int64_t>("batch")
                                  .Attr<bool>("need_dx"));

#endif  // RLX2_COMPACT_DENSE_FFI_H_
