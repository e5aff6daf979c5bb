// XLA FFI handlers of dense multilayer perceptrons (dense.h), for jax.ffi.
//
//   rlx2_dense_forward (x, (kernel, bias)...) -> (y, acts...)
//   rlx2_dense_backward(x, dy, kernel..., acts...) -> (dx, (dkernel, dbias)...)
//
// `nets` networks of the same sizes share the input x. Operands come layer by layer with a leading
// axis of networks: kernel [n, in, out], bias [n, out] with n >= nets (only the first `nets` are
// used; n == nets if gradients are wanted), acts [nets, batch, features] per hidden layer,
// y [nets, batch, out], dx [nets, batch, in]. Every operand may have leading lane axes; an axis of
// size 1 is shared by all lanes. acts and the gradients of the parameters are all present or all
// absent; an unwanted dx has size 0.

#ifndef RLX2_COMPACT_DENSE_FFI_H_
#define RLX2_COMPACT_DENSE_FFI_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include "dense.h"
#include "lanes.h"

namespace {

// Rows of the batch per task.
constexpr int64_t kDenseRows = 16;

// One operand or result: its data, the lane strides, and the number of elements per network.
template <typename T>
struct Operand {
  T* data;
  Slices at;
  int64_t size;
};

struct DenseSpec {
  std::vector<int64_t> width, lanes;
  int64_t nets, batch, layers, units, parts, work;

  DenseSpec(ffi::Span<const int64_t> widths, int64_t nets, ffi::Span<const int64_t> dims)
      : width(widths.begin(), widths.end()),
        lanes(dims.begin(), dims.end() - 3),
        nets(nets),
        batch(dims[dims.size() - 2]),
        layers(static_cast<int64_t>(widths.size()) - 1),
        units(Count(lanes) * nets),
        parts((batch + kDenseRows - 1) / kDenseRows) {
    work = 0;
    for (int64_t l = 0; l < layers; ++l) work += batch * width[l] * width[l + 1];
    work *= units;
  }

  int64_t Begin(int64_t part) const { return part * kDenseRows; }
  int64_t End(int64_t part) const { return std::min((part + 1) * kDenseRows, batch); }
};

// Appends operand `first` of `buffers` (RemainingArgs or RemainingRets), whose last `rank` axes hold
// `size` numbers for each of `nets` or more networks.
template <typename T, typename Buffers>
bool Collect(const Buffers& buffers, int64_t first, int64_t rank, int64_t size, int64_t nets,
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
  if (!at.ok || at.core % size != 0 || at.core / size < nets) return false;
  to.push_back({b.typed_data<T>(), at, size});
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
  for (int64_t l = 0; l < s.layers; ++l) {
    const int64_t in = s.width[l], out = s.width[l + 1];
    if (!Collect<T>(args, 2 * l, 3, in * out, s.nets, lanes, params)) return BadShape("a kernel");
    if (!Collect<T>(args, 2 * l + 1, 2, out, s.nets, lanes, params)) return BadShape("a bias");
    if (!keep || l + 1 == s.layers) continue;
    if (!Collect<T>(rets, l, 3, s.batch * out, s.nets, lanes, acts)) return BadShape("acts");
  }
  std::vector<rlx2::dense::Net<T>> nets(s.units);
  std::vector<T*> out(s.units);
  for (int64_t unit = 0; unit < s.units; ++unit) {
    const int64_t net = unit % s.nets, lane = unit / s.nets;
    const auto at = [&](const Operand<T>& o) {
      return o.data + o.at.Offset(lane, lanes) + net * o.size;
    };
    rlx2::dense::Net<T>& n = nets[unit];
    n.x = x.typed_data<T>() + x_at.Offset(lane, lanes);
    out[unit] = y.typed_data<T>() + y_at.Offset(lane, lanes) + net * s.batch * s.width.back();
    for (int64_t l = 0; l < s.layers; ++l) {
      n.kernel.push_back(at(params[2 * l]));
      n.bias.push_back(at(params[2 * l + 1]));
      if (keep && l + 1 < s.layers) n.acts.push_back(at(acts[l]));
    }
  }
  const rlx2::dense::Forward<T> forward(s.width);
  const auto task = [&](int64_t unit, int64_t phase, int64_t part, T* scratch) {
    if (phase == 0) return forward.Pack(nets[unit], scratch, part);
    forward.Rows(nets[unit], scratch, s.Begin(part), s.End(part), out[unit]);
  };
  Phases<T>(pool, s.units, {forward.blocks, s.parts}, s.work, forward.size, task);
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
  for (int64_t l = 0; l < s.layers; ++l) {
    const int64_t in = s.width[l], out = s.width[l + 1], n = s.nets;
    if (!Collect<T>(args, l, 3, in * out, n, lanes, kernels)) return BadShape("a kernel");
    if (l + 1 < s.layers && !Collect<T>(args, s.layers + l, 3, s.batch * out, n, lanes, acts)) {
      return BadShape("acts");
    }
    if (!need_params) continue;
    if (!Collect<T>(rets, 2 * l, 3, in * out, n, lanes, grads)) return BadShape("a gradient");
    if (!Collect<T>(rets, 2 * l + 1, 2, out, n, lanes, grads)) return BadShape("a gradient");
  }
  std::vector<rlx2::dense::Net<T>> nets(s.units);
  std::vector<const T*> given(s.units);
  std::vector<T*> to(s.units);
  for (int64_t unit = 0; unit < s.units; ++unit) {
    const int64_t net = unit % s.nets, lane = unit / s.nets;
    const auto at = [&](const Operand<T>& o) {
      return o.data + o.at.Offset(lane, lanes) + net * o.size;
    };
    rlx2::dense::Net<T>& n = nets[unit];
    n.x = x.typed_data<T>() + x_at.Offset(lane, lanes);
    given[unit] = dy.typed_data<T>() + dy_at.Offset(lane, lanes) + net * s.batch * s.width.back();
    if (need_dx) {
      to[unit] = dx.typed_data<T>() + dx_at.Offset(lane, lanes) + net * s.batch * s.width.front();
    }
    for (int64_t l = 0; l < s.layers; ++l) {
      n.kernel.push_back(at(kernels[l]));
      if (l + 1 < s.layers) n.acts.push_back(at(acts[l]));
      if (!need_params) continue;
      n.dkernel.push_back(at(grads[2 * l]));
      n.dbias.push_back(at(grads[2 * l + 1]));
    }
  }
  const rlx2::dense::Backward<T> backward(s.width, s.batch, need_params, need_dx);
  const auto task = [&](int64_t unit, int64_t phase, int64_t part, T* scratch) {
    const rlx2::dense::Net<T>& n = nets[unit];
    const T* g = given[unit];
    if (phase == 0) return backward.Pack(n, scratch, part);
    if (phase == 1) return backward.Rows(n, scratch, g, s.Begin(part), s.End(part), to[unit]);
    backward.Weights(n, scratch, g, part);
  };
  Phases<T>(pool, s.units, {backward.packs, s.parts, backward.blocks}, 2 * s.work, backward.size,
            task);
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
  // Take the lane axes from the result: even an unwanted dx has them.
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
