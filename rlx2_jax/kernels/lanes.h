// Shared by the FFI handlers: multithreading, and operands with lane axes.

#ifndef RLX2_COMPACT_LANES_H_
#define RLX2_COMPACT_LANES_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// Multiply-adds below which a second thread does not pay off (about 20 us of work).
constexpr int64_t kGrain = 400 * 1000;
// Above this number of tasks per thread, threads balance well without splitting units further.
constexpr int64_t kShare = 4;
// How often a thread polls for the last task before it sleeps.
constexpr int kSpins = 2000;

// Runs f(0) .. f(tasks - 1) on the caller and, if there is enough work, on XLA's thread pool. The
// caller also takes tasks and waits only for started ones, so a busy pool cannot deadlock.
template <typename F>
void Parallel(ffi::ThreadPool& pool, int64_t tasks, int64_t work, const F& f) {
  const int64_t threads =
      std::min({tasks, work / kGrain, tasks > 1 ? pool.num_threads() : int64_t{1}});
  if (threads <= 1) {
    for (int64_t t = 0; t < tasks; ++t) f(t);
    return;
  }
  struct State {
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable finished;
  };
  auto state = std::make_shared<State>();
  const auto drain = [&f, tasks](State& s) {
    for (int64_t t = s.next.fetch_add(1); t < tasks; t = s.next.fetch_add(1)) {
      f(t);
      if (s.done.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) {
        std::lock_guard<std::mutex> lock(s.mutex);
        s.finished.notify_one();
      }
    }
  };
  // A helper that starts too late finds no tasks and touches only `state`.
  for (int64_t i = 1; i < threads; ++i) {
    pool.Schedule([state, drain] { drain(*state); });
  }
  drain(*state);
  const auto finished = [&] { return state->done.load(std::memory_order_acquire) == tasks; };
  for (int i = 0; i < kSpins && !finished(); ++i) std::this_thread::yield();
  if (finished()) return;
  std::unique_lock<std::mutex> lock(state->mutex);
  state->finished.wait(lock, finished);
}

// Runs f(unit, phase, i, scratch) for every unit and every i < counts[phase], with the phases of a
// unit in sequence. If there are few units, threads share the tasks of each; a thread whose task
// needs an earlier phase waits only for started tasks, so there is no deadlock. `scratch` holds
// `size` elements per unit.
template <typename T, typename F>
void Phases(ffi::ThreadPool& pool, int64_t units, const std::vector<int64_t>& counts, int64_t work,
            int64_t size, const F& f) {
  thread_local std::vector<T> kept;
  const auto room = [&](int64_t n) {
    if (static_cast<int64_t>(kept.size()) < n) kept.resize(n);
    return kept.data();
  };
  const int64_t phases = static_cast<int64_t>(counts.size());
  if (units >= kShare * pool.num_threads() || work < 2 * kGrain) {
    Parallel(pool, units, work, [&](int64_t unit) {
      T* scratch = room(size);
      for (int64_t p = 0; p < phases; ++p) {
        for (int64_t i = 0; i < counts[p]; ++i) f(unit, p, i, scratch);
      }
    });
    return;
  }
  T* scratch = room(units * size);
  const std::unique_ptr<std::atomic<int64_t>[]> done(new std::atomic<int64_t>[units * phases]());
  const int64_t tasks = units * std::accumulate(counts.begin(), counts.end(), int64_t{0});
  Parallel(pool, tasks, work, [&](int64_t task) {
    int64_t phase = 0;
    for (; task >= units * counts[phase]; ++phase) task -= units * counts[phase];
    const int64_t unit = task / counts[phase];
    std::atomic<int64_t>* own = &done[unit * phases];
    while (phase > 0 && own[phase - 1].load(std::memory_order_acquire) < counts[phase - 1]) {
      std::this_thread::yield();
    }
    f(unit, phase, task % counts[phase], scratch + unit * size);
    own[phase].fetch_add(1, std::memory_order_acq_rel);
  });
}

// Finds one lane's slice of a buffer of shape [lane axes..., core axes...].
struct Slices {
  int64_t core = 1;
  std::vector<int64_t> stride;  // per lane axis, 0 where the axis is shared
  bool ok = true;

  Slices(ffi::Span<const int64_t> dims, const std::vector<int64_t>& lanes, int64_t core_rank) {
    const int64_t rank = static_cast<int64_t>(lanes.size());
    ok = static_cast<int64_t>(dims.size()) == rank + core_rank;
    if (!ok) return;
    for (int64_t d = rank; d < rank + core_rank; ++d) core *= dims[d];
    stride.assign(rank, 0);
    int64_t step = core;
    for (int64_t d = rank - 1; d >= 0; --d) {
      ok = ok && (dims[d] == lanes[d] || dims[d] == 1);
      if (dims[d] != 1) stride[d] = step;
      step *= dims[d];
    }
  }

  int64_t Offset(int64_t lane, const std::vector<int64_t>& lanes) const {
    int64_t offset = 0;
    for (int64_t d = static_cast<int64_t>(lanes.size()) - 1; d >= 0; --d) {
      offset += (lane % lanes[d]) * stride[d];
      lane /= lanes[d];
    }
    return offset;
  }
};

ffi::Error BadShape(const char* name) {
  return ffi::Error::InvalidArgument(std::string("rlx2: shape of ") + name +
                                     " does not fit the network");
}

// The lane axes: those of the result, before its core axes.
std::vector<int64_t> LaneAxes(ffi::Span<const int64_t> dims, size_t core_rank) {
  return std::vector<int64_t>(dims.begin(), dims.end() - core_rank);
}
int64_t Count(const std::vector<int64_t>& lanes) {
  return std::accumulate(lanes.begin(), lanes.end(), int64_t{1}, std::multiplies<int64_t>());
}

#define RLX2_OPERAND(name, rank, size)                          \
  const Slices name##_at(name.dimensions(), lanes, rank);       \
  if (!name##_at.ok || name##_at.core != (size)) return BadShape(#name)

}  // namespace

#endif  // RLX2_COMPACT_LANES_H_
