// XLA FFI handlers of the compact multilayer perceptron (mlp.h), for jax.ffi.
//
//   rlx2_mlp_forward (flat, rowptr, cols, x) -> (y, acts)
//   rlx2_mlp_backward(flat, rowptr, cols, colptr, rows, perm, acts, dy) -> (dflat, dx, grads)
//
// Every operand may have leading lane axes; an axis of size 1 is shared by all lanes. Unwanted
// outputs have size 0. float32 and float64.

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "adam_ffi.h"
#include "dense_ffi.h"
#include "host_ffi.h"
#include "lanes.h"
#include "mlp.h"

#define RLX2_KERNELS "peak.h"
#include "each_isa.h"
#undef RLX2_KERNELS

#ifndef RLX2_BUILD
#define RLX2_BUILD "unknown"
#endif

namespace {

using rlx2::Index;
using rlx2::Spec;

// A backward pass splits the batch into at most this many parts of whole column blocks and sums
// their weight gradients in a fixed order, so results do not depend on the number of threads.
constexpr int64_t kParts = 4;
constexpr int64_t kPartColumns = 64;

ffi::Error MakeSpec(ffi::Span<const int64_t> width, ffi::Span<const int64_t> nnz, int64_t batch,
                    bool relu_last, bool feature_major, Spec& s) {
  if (width.size() < 2 || nnz.size() + 1 != width.size()) {
    return ffi::Error::InvalidArgument("rlx2: widths and nnz do not describe a network");
  }
  s.layers = static_cast<int64_t>(nnz.size());
  s.batch = batch;
  s.relu_last = relu_last;
  s.feature_major = feature_major;
  s.width.assign(width.begin(), width.end());
  s.nnz.assign(nnz.begin(), nnz.end());
  for (int64_t w : s.width) {
    if (w < 1 || w > INT32_MAX) return ffi::Error::InvalidArgument("rlx2: width out of range");
  }
  for (int64_t n : s.nnz) {
    if (n < 0 || n >= INT32_MAX) return ffi::Error::InvalidArgument("rlx2: nnz out of range");
  }
  s.Finish();
  return ffi::Error::Success();
}

ffi::Error BadIndex() {
  return ffi::Error::InvalidArgument(
      "rlx2: an index array leads outside the network; check it with compact.layout.validate");
}

template <typename T>
ffi::Error Forward(ffi::ThreadPool pool, ffi::AnyBuffer flat, ffi::AnyBuffer rowptr,
                   ffi::AnyBuffer cols, ffi::AnyBuffer x, ffi::AnyBuffer y, ffi::AnyBuffer acts,
                   Spec& s, const std::vector<int64_t>& lanes) {
  const bool keep = acts.element_count() > 0;
  RLX2_OPERAND(flat, 1, s.parameters);
  RLX2_OPERAND(rowptr, 1, s.rowptrs);
  RLX2_OPERAND(cols, 1, s.links);
  RLX2_OPERAND(x, 2, s.batch * s.width.front());
  RLX2_OPERAND(y, 2, s.batch * s.width.back());
  RLX2_OPERAND(acts, 1, keep ? s.acts : 0);
  const int64_t parts = std::max<int64_t>(1, s.batch / kPartColumns);
  std::atomic<bool> valid{true};
  const auto task = [&](int64_t lane, int64_t phase, int64_t part, T*) {
    const Index ix{rowptr.typed_data<int32_t>() + rowptr_at.Offset(lane, lanes),
                   cols.typed_data<int32_t>() + cols_at.Offset(lane, lanes)};
    if (phase == 0 && !rlx2::Valid(s, ix)) valid = false;
    if (phase == 0 || !valid) return;
    const int64_t begin = part * kPartColumns;
    const int64_t end = part + 1 == parts ? s.batch : begin + kPartColumns;
    rlx2::Forward<T>(s, ix, flat.typed_data<T>() + flat_at.Offset(lane, lanes),
                     x.typed_data<T>() + x_at.Offset(lane, lanes), begin, end,
                     y.typed_data<T>() + y_at.Offset(lane, lanes),
                     keep ? acts.typed_data<T>() + acts_at.Offset(lane, lanes) : nullptr);
  };
  const int64_t count = Count(lanes);
  Phases<T>(pool, count, {1, parts}, count * s.links * s.batch, 0, task);
  return valid ? ffi::Error::Success() : BadIndex();
}

ffi::Error ForwardImpl(ffi::ThreadPool pool, ffi::AnyBuffer flat, ffi::AnyBuffer rowptr,
                       ffi::AnyBuffer cols, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y,
                       ffi::Result<ffi::AnyBuffer> acts, ffi::Span<const int64_t> widths,
                       ffi::Span<const int64_t> nnz, bool relu_last, bool feature_major) {
  const auto dims = y->dimensions();
  if (dims.size() < 2) return BadShape("y");
  for (const ffi::AnyBuffer* index : {&rowptr, &cols}) {
    if (index->element_type() != ffi::S32) return BadShape("an index array (int32)");
  }
  for (const ffi::AnyBuffer* b : {&x, &*y, &*acts}) {
    if (b->element_type() != flat.element_type()) return BadShape("an operand (one dtype)");
  }
  Spec s;
  const int64_t batch = dims[dims.size() - (feature_major ? 1 : 2)];
  if (auto e = MakeSpec(widths, nnz, batch, relu_last, feature_major, s); e.failure()) return e;
  const auto lanes = LaneAxes(dims, 2);
  if (flat.element_type() == ffi::F32) {
    return Forward<float>(pool, flat, rowptr, cols, x, *y, *acts, s, lanes);
  }
  if (flat.element_type() == ffi::F64) {
    return Forward<double>(pool, flat, rowptr, cols, x, *y, *acts, s, lanes);
  }
  return ffi::Error::InvalidArgument("rlx2: dtype must be float32 or float64");
}

template <typename T>
ffi::Error Backward(ffi::ThreadPool pool, ffi::AnyBuffer flat, ffi::AnyBuffer rowptr,
                    ffi::AnyBuffer cols, ffi::AnyBuffer colptr, ffi::AnyBuffer rows,
                    ffi::AnyBuffer perm, ffi::AnyBuffer acts, ffi::AnyBuffer dy,
                    ffi::AnyBuffer dflat, ffi::AnyBuffer dx, ffi::AnyBuffer grads, Spec& s,
                    const std::vector<int64_t>& lanes, bool need_dflat, bool need_dx,
                    bool need_grads) {
  RLX2_OPERAND(flat, 1, s.parameters);
  RLX2_OPERAND(rowptr, 1, s.rowptrs);
  RLX2_OPERAND(cols, 1, s.links);
  RLX2_OPERAND(colptr, 1, s.colptrs);
  RLX2_OPERAND(rows, 1, s.links);
  RLX2_OPERAND(perm, 1, s.links);
  RLX2_OPERAND(acts, 1, s.acts);
  RLX2_OPERAND(dy, 2, s.batch * s.width.back());
  RLX2_OPERAND(dflat, 1, need_dflat ? s.parameters : 0);
  RLX2_OPERAND(dx, 2, need_dx ? s.batch * s.width.front() : 0);
  RLX2_OPERAND(grads, 1, need_grads ? s.grads : 0);
  const int64_t parts = std::clamp<int64_t>(s.batch / kPartColumns, 1, kParts);
  const int64_t columns = s.batch / parts / 64 * 64;
  // Part 0 accumulates in the output, the others in the scratch, after the transposed values.
  const int64_t extra = need_dflat ? parts - 1 : 0;
  std::atomic<bool> valid{true};
  const auto task = [&](int64_t lane, int64_t phase, int64_t part, T* scratch) {
    const Index ix{rowptr.typed_data<int32_t>() + rowptr_at.Offset(lane, lanes),
                   cols.typed_data<int32_t>() + cols_at.Offset(lane, lanes),
                   colptr.typed_data<int32_t>() + colptr_at.Offset(lane, lanes),
                   rows.typed_data<int32_t>() + rows_at.Offset(lane, lanes),
                   perm.typed_data<int32_t>() + perm_at.Offset(lane, lanes)};
    if (phase == 0) {
      if (!rlx2::Valid(s, ix)) {
        valid = false;
        return;
      }
      rlx2::Transpose<T>(s, ix, flat.typed_data<T>() + flat_at.Offset(lane, lanes),
                         need_dx ? 0 : 1, scratch);
      return;
    }
    if (!valid) return;
    T* out = need_dflat ? dflat.typed_data<T>() + dflat_at.Offset(lane, lanes) : nullptr;
    T* partial = scratch + s.links;
    if (phase == 2) {
      for (int64_t p = 0; p < extra; ++p, partial += s.parameters) {
        for (int64_t i = 0; i < s.parameters; ++i) out[i] += partial[i];
      }
      return;
    }
    const int64_t begin = part * columns;
    const int64_t end = part + 1 == parts ? s.batch : begin + columns;
    T* own = part == 0 || !need_dflat ? out : partial + (part - 1) * s.parameters;
    if (own != nullptr) std::fill_n(own, s.parameters, T(0));
    rlx2::Backward<T>(
        s, ix, scratch, acts.typed_data<T>() + acts_at.Offset(lane, lanes),
        dy.typed_data<T>() + dy_at.Offset(lane, lanes), begin, end, own,
        need_dx ? dx.typed_data<T>() + dx_at.Offset(lane, lanes) : nullptr,
        need_grads ? grads.typed_data<T>() + grads_at.Offset(lane, lanes) : nullptr);
  };
  const int64_t count = Count(lanes);
  Phases<T>(pool, count, {1, parts, extra > 0 ? 1 : 0}, 2 * count * s.links * s.batch,
            s.links + extra * s.parameters, task);
  return valid ? ffi::Error::Success() : BadIndex();
}

ffi::Error BackwardImpl(ffi::ThreadPool pool, ffi::AnyBuffer flat, ffi::AnyBuffer rowptr,
                        ffi::AnyBuffer cols, ffi::AnyBuffer colptr, ffi::AnyBuffer rows,
                        ffi::AnyBuffer perm, ffi::AnyBuffer acts, ffi::AnyBuffer dy,
                        ffi::Result<ffi::AnyBuffer> dflat, ffi::Result<ffi::AnyBuffer> dx,
                        ffi::Result<ffi::AnyBuffer> grads, ffi::Span<const int64_t> widths,
                        ffi::Span<const int64_t> nnz, bool relu_last, bool feature_major,
                        bool need_dflat, bool need_dx, bool need_grads) {
  const auto dims = dy.dimensions();
  const auto lane_dims = dflat->dimensions();
  if (dims.size() < 2 || lane_dims.size() < 1) return BadShape("dy or dflat");
  for (const ffi::AnyBuffer* index : {&rowptr, &cols, &colptr, &rows, &perm}) {
    if (index->element_type() != ffi::S32) return BadShape("an index array (int32)");
  }
  for (const ffi::AnyBuffer* b : {&acts, &dy, &*dflat, &*dx, &*grads}) {
    if (b->element_type() != flat.element_type()) return BadShape("an operand (one dtype)");
  }
  Spec s;
  const int64_t batch = dims[dims.size() - (feature_major ? 1 : 2)];
  if (auto e = MakeSpec(widths, nnz, batch, relu_last, feature_major, s); e.failure()) return e;
  const auto lanes = LaneAxes(lane_dims, 1);
  if (flat.element_type() == ffi::F32) {
    return Backward<float>(pool, flat, rowptr, cols, colptr, rows, perm, acts, dy, *dflat, *dx,
                           *grads, s, lanes, need_dflat, need_dx, need_grads);
  }
  if (flat.element_type() == ffi::F64) {
    return Backward<double>(pool, flat, rowptr, cols, colptr, rows, perm, acts, dy, *dflat, *dx,
                            *grads, s, lanes, need_dflat, need_dx, need_grads);
  }
  return ffi::Error::InvalidArgument("rlx2: dtype must be float32 or float64");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Rlx2MlpForward, ForwardImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()   // flat
                                  .Arg<ffi::AnyBuffer>()   // rowptr
                                  .Arg<ffi::AnyBuffer>()   // cols
                                  .Arg<ffi::AnyBuffer>()   // x
                                  .Ret<ffi::AnyBuffer>()   // y
                                  .Ret<ffi::AnyBuffer>()   // acts
                                  .Attr<ffi::Span<const int64_t>>("widths")
                                  .Attr<ffi::Span<const int64_t>>("nnz")
                                  .Attr<bool>("relu_last")
                                  .Attr<bool>("feature_major"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(Rlx2MlpBackward, BackwardImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()   // flat
                                  .Arg<ffi::AnyBuffer>()   // rowptr
                                  .Arg<ffi::AnyBuffer>()   // cols
                                  .Arg<ffi::AnyBuffer>()   // colptr
                                  .Arg<ffi::AnyBuffer>()   // rows
                                  .Arg<ffi::AnyBuffer>()   // perm
                                  .Arg<ffi::AnyBuffer>()   // acts
                                  .Arg<ffi::AnyBuffer>()   // dy
                                  .Ret<ffi::AnyBuffer>()   // dflat
                                  .Ret<ffi::AnyBuffer>()   // dx
                                  .Ret<ffi::AnyBuffer>()   // grads
                                  .Attr<ffi::Span<const int64_t>>("widths")
                                  .Attr<ffi::Span<const int64_t>>("nnz")
                                  .Attr<bool>("relu_last")
                                  .Attr<bool>("feature_major")
                                  .Attr<bool>("need_dflat")
                                  .Attr<bool>("need_dx")
                                  .Attr<bool>("need_grads"));

extern "C" {

// Source hash and FFI version of this build; native.py rejects incompatible libraries.
const char* Rlx2Build() { return RLX2_BUILD; }
int Rlx2FfiVersion() { return XLA_FFI_API_MAJOR * 1000 + XLA_FFI_API_MINOR; }

// Performs `turns` rounds of float multiply-adds (`load`: with one factor from memory) and returns
// their number.
int64_t Rlx2MultiplyAdds(int load, int64_t turns) {
  alignas(64) static const std::array<float, 4096> row = [] {
    std::array<float, 4096> made{};
    made.fill(1e-9f);
    return made;
  }();
  volatile float sum;
  int64_t lanes = 4;
  switch (rlx2::CurrentIsa()) {
#ifdef RLX2_X86
    case rlx2::Isa::kAvx512:
      lanes = 16;
      sum = load ? rlx2::avx512::MultiplyAdds<true>(turns, row.data())
                 : rlx2::avx512::MultiplyAdds<false>(turns, row.data());
      break;
    case rlx2::Isa::kAvx2:
      lanes = 8;
      sum = load ? rlx2::avx2::MultiplyAdds<true>(turns, row.data())
                 : rlx2::avx2::MultiplyAdds<false>(turns, row.data());
      break;
#endif
    default:
      sum = load ? rlx2::baseline::MultiplyAdds<true>(turns, row.data())
                 : rlx2::baseline::MultiplyAdds<false>(turns, row.data());
  }
  (void)sum;
  return 12 * lanes * turns;
}

// Selects an instruction set, limited to the best one of this CPU; returns the selected one.
int Rlx2SelectIsa(int wanted) {
  const int best = static_cast<int>(rlx2::BestIsa());
  rlx2::CurrentIsa() = static_cast<rlx2::Isa>(std::clamp(wanted, 0, best));
  return static_cast<int>(rlx2::CurrentIsa());
}
}
