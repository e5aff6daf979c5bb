// XLA FFI handler of one Adam step on all arrays of a network, for jax.ffi.
//
//   rlx2_adam(scalars, (params, mu, nu, grads[, mask])...) -> (finite, (params, mu, nu)...)
//
// scalars [4]: learning rate, 1 / (1 - b1^t), 1 / (1 - b2^t), and whether to step at all. If any
// gradient is not finite, all are replaced by zeros. Every operand has the same leading lane axes;
// results may alias operands.

#ifndef RLX2_COMPACT_ADAM_FFI_H_
#define RLX2_COMPACT_ADAM_FFI_H_

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "dense_ffi.h"
#include "lanes.h"

namespace {

constexpr int64_t kAdamChunk = 8192;  // elements of a task
constexpr int64_t kAdamWork = 16;     // cost of an element in multiply-adds

template <typename T>
struct AdamArrays {
  const T *params, *mu, *nu, *grads;
  const uint8_t* mask;  // or null
  T *new_params, *new_mu, *new_nu;
};

#define RLX2_ADAM(name, target)                                                                 \
  template <typename T>                                                                         \
  target bool Finite##name(const T* g, int64_t n) {                                             \
    int bad = 0;                                                                                \
    for (int64_t i = 0; i < n; ++i) bad |= !(g[i] - g[i] == T(0));                              \
    return bad == 0;                                                                            \
  }                                                                                             \
  template <typename T, bool kMask, bool kFinite>                                               \
  target void Adam##name(const AdamArrays<T>& a, int64_t n, const T* s, const double* b) {      \
    const T rate = s[0], scale1 = s[1], scale2 = s[2], b1 = T(b[0]), b2 = T(b[1]);              \
    const T c1 = T(1 - b[0]), c2 = T(1 - b[1]), eps = T(b[2]);                                  \
    const T *params = a.params, *mus = a.mu, *nus = a.nu, *grads = a.grads;                     \
    const uint8_t* mask = a.mask;                                                               \
    T *new_params = a.new_params, *new_mu = a.new_mu, *new_nu = a.new_nu;                       \
    _Pragma("GCC ivdep") /* results may lie where the operands do, element by element */        \
    for (int64_t i = 0; i < n; ++i) {                                                           \
      const T given = grads[i], old = params[i];                                                \
      const T live = kMask ? T(mask[i]) : T(1); /* a factor: a branch would not vectorize */    \
      const T g = kFinite ? given * live : T(0);                                                \
      const T mu = b1 * mus[i] + c1 * g, nu = b2 * nus[i] + c2 * (g * g);                       \
      const T p = old - rate * ((mu * scale1) / (std::sqrt(nu * scale2) + eps));                \
      new_mu[i] = mu;                                                                           \
      new_nu[i] = nu;                                                                           \
      new_params[i] = kMask ? p * live + T(0) : p; /* +0 off the mask, whatever its sign */     \
    }                                                                                           \
  }
#ifdef RLX2_X86
RLX2_ADAM(Wide, __attribute__((target("avx2,fma"))))
#endif
RLX2_ADAM(Plain, )
#undef RLX2_ADAM

template <typename T>
bool Finite(const T* g, int64_t n) {
#ifdef RLX2_X86
  if (rlx2::CurrentIsa() != rlx2::Isa::kBaseline) return FiniteWide<T>(g, n);
#endif
  return FinitePlain<T>(g, n);
}

template <typename T, bool kMask, bool kFinite>
void Adam(const AdamArrays<T>& a, int64_t n, const T* s, const double* b) {
#ifdef RLX2_X86
  if (rlx2::CurrentIsa() != rlx2::Isa::kBaseline) return AdamWide<T, kMask, kFinite>(a, n, s, b);
#endif
  AdamPlain<T, kMask, kFinite>(a, n, s, b);
}

template <typename T>
ffi::Error AdamStep(ffi::ThreadPool pool, ffi::AnyBuffer scalars, ffi::RemainingArgs args,
                    ffi::AnyBuffer finite, ffi::RemainingRets rets, bool masked,
                    const double* decay) {
  const int64_t lanes = static_cast<int64_t>(finite.element_count());
  const int64_t stride = masked ? 5 : 4;
  const int64_t leaves = static_cast<int64_t>(args.size()) / stride;
  if (static_cast<int64_t>(args.size()) != leaves * stride ||
      static_cast<int64_t>(rets.size()) != leaves * 3 ||
      static_cast<int64_t>(scalars.element_count()) != 4 * lanes) {
    return BadShape("the arrays of an Adam step");
  }
  struct Task {
    int64_t leaf, begin, end;
  };
  std::vector<AdamArrays<T>> arrays(leaves);
  std::vector<int64_t> sizes(leaves);
  std::vector<Task> tasks;
  int64_t total = 0;
  for (int64_t i = 0; i < leaves; ++i) {
    T* own[7];
    for (int64_t j = 0; j < 7; ++j) {
      auto arg = args.get<ffi::AnyBuffer>(i * stride + std::min<int64_t>(j, 3));
      auto ret = rets.get<ffi::AnyBuffer>(i * 3 + std::max<int64_t>(j - 4, 0));
      if (!arg.has_value() || !ret.has_value()) return BadShape("an array of an Adam step");
      ffi::AnyBuffer b = j < 4 ? *arg : **ret;
      const int64_t count = static_cast<int64_t>(b.element_count());
      if (j == 0) sizes[i] = count / std::max<int64_t>(lanes, 1);
      if (count != sizes[i] * lanes || b.element_type() != scalars.element_type()) {
        return BadShape("an array of an Adam step");
      }
      own[j] = b.typed_data<T>();
    }
    arrays[i] = {own[0], own[1], own[2], own[3], nullptr, own[4], own[5], own[6]};
    if (masked) {
      auto mask = args.get<ffi::AnyBuffer>(i * stride + 4);
      if (!mask.has_value() || mask->element_type() != ffi::PRED ||
          static_cast<int64_t>(mask->element_count()) != sizes[i] * lanes) {
        return BadShape("a mask");
      }
      arrays[i].mask = static_cast<const uint8_t*>(mask->untyped_data());
    }
    for (int64_t at = 0; at < sizes[i]; at += kAdamChunk) {
      tasks.push_back({i, at, std::min(at + kAdamChunk, sizes[i])});
    }
    total += sizes[i];
  }
  const int64_t each = static_cast<int64_t>(tasks.size());
  std::unique_ptr<std::atomic<bool>[]> good(new std::atomic<bool>[lanes]);
  for (int64_t lane = 0; lane < lanes; ++lane) good[lane] = true;
  Parallel(pool, lanes * each, lanes * total, [&](int64_t task) {
    const Task& t = tasks[task % each];
    const int64_t lane = task / each, at = lane * sizes[t.leaf] + t.begin;
    if (!Finite<T>(arrays[t.leaf].grads + at, t.end - t.begin)) good[lane] = false;
  });
  bool* told = static_cast<bool*>(finite.untyped_data());
  for (int64_t lane = 0; lane < lanes; ++lane) told[lane] = good[lane];
  Parallel(pool, lanes * each, kAdamWork * lanes * total, [&](int64_t task) {
    const Task& t = tasks[task % each];
    const int64_t lane = task / each, at = lane * sizes[t.leaf] + t.begin, n = t.end - t.begin;
    const AdamArrays<T>& all = arrays[t.leaf];
    const AdamArrays<T> a{all.params + at,     all.mu + at,
                          all.nu + at,         all.grads + at,
                          masked ? all.mask + at : nullptr, all.new_params + at,
                          all.new_mu + at,     all.new_nu + at};
    const T* s = scalars.typed_data<T>() + 4 * lane;
    if (s[3] == T(0)) {  // no step: copy
      if (a.new_params != a.params) std::copy_n(a.params, n, a.new_params);
      if (a.new_mu != a.mu) std::copy_n(a.mu, n, a.new_mu);
      if (a.new_nu != a.nu) std::copy_n(a.nu, n, a.new_nu);
    } else if (masked) {
      good[lane] ? Adam<T, true, true>(a, n, s, decay) : Adam<T, true, false>(a, n, s, decay);
    } else {
      good[lane] ? Adam<T, false, true>(a, n, s, decay) : Adam<T, false, false>(a, n, s, decay);
    }
  });
  return ffi::Error::Success();
}

ffi::Error AdamImpl(ffi::ThreadPool pool, ffi::AnyBuffer scalars, ffi::RemainingArgs args,
                    ffi::Result<ffi::AnyBuffer> finite, ffi::RemainingRets rets, bool masked,
                    double b1, double b2, double eps) {
  const double decay[3] = {b1, b2, eps};
  if (finite->element_type() != ffi::PRED) return BadShape("finite");
  if (scalars.element_type() == ffi::F32) {
    return AdamStep<float>(pool, scalars, args, *finite, rets, masked, decay);
  }
  if (scalars.element_type() == ffi::F64) {
    return AdamStep<double>(pool, scalars, args, *finite, rets, masked, decay);
  }
  return ffi::Error::InvalidArgument("rlx2: dtype must be float32 or float64");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Rlx2Adam, AdamImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // scalars
                                  .RemainingArgs()        // (params, mu, nu, grads[, mask])...
                                  .Ret<ffi::AnyBuffer>()  // finite
                                  .RemainingRets()        // (params, mu, nu)...
                                  .Attr<bool>("masked")
                                  .Attr<double>("b1")
                                  .Attr<double>("b2")
                                  .Attr<double>("eps"));

#endif  // RLX2_COMPACT_ADAM_FFI_H_
