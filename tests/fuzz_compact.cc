// Random and hostile networks through the compact kernels, for a build with
// -fsanitize=address,undefined. Every array is its own heap block of the exact size, so a read or
// write one element outside is caught; results are compared with plain loops in double.
//
//   fuzz_compact SEED COUNT

#include <cmath>
#include <random>
#include <vector>

#include "fuzz.h"
#include "mlp.h"

namespace {

struct Net {
  rlx2::Spec s;
  std::vector<int32_t> rowptr, cols, colptr, rows, perm;
  rlx2::Index View() const {
    return {rowptr.data(), cols.data(), colptr.data(), rows.data(), perm.data()};
  }
};

Net RandomNet() {
  static const int64_t widths[] = {1, 1, 2, 3, 5, 8, 17, 40};
  static const int64_t batches[] = {1, 2, 3, 4, 5, 7, 15, 16, 21, 63, 64, 65, 128, 149};
  Net n;
  n.s.layers = Uniform(1, 4);
  n.s.batch = batches[Uniform(0, 13)];
  n.s.relu_last = Uniform(0, 1);
  n.s.feature_major = Uniform(0, 1);
  for (int64_t l = 0; l <= n.s.layers; ++l) n.s.width.push_back(widths[Uniform(0, 7)]);
  for (int64_t l = 0; l < n.s.layers; ++l) {
    const int64_t in = n.s.width[l], out = n.s.width[l + 1];
    const double density = Uniform(0, 4) / 4.0;  // none, some, all
    std::vector<std::pair<int32_t, int32_t>> links;
    for (int32_t r = 0; r < out; ++r) {
      for (int32_t c = 0; c < in; ++c) {
        if (std::uniform_real_distribution<double>()(gen) < density) links.push_back({r, c});
      }
    }
    const int64_t live = links.size(), padding = Uniform(0, 3);
    n.s.nnz.push_back(live + padding);
    std::vector<int32_t> by_col(live);
    std::vector<int32_t> rp(out + 1, 0), cp(in + 1, 0);
    for (int64_t k = 0; k < live; ++k) {
      by_col[k] = k;
      ++rp[links[k].first + 1];
      ++cp[links[k].second + 1];
      n.cols.push_back(links[k].second);
    }
    std::stable_sort(by_col.begin(), by_col.end(),
                     [&](int a, int b) { return links[a].second < links[b].second; });
    for (int64_t r = 0; r < out; ++r) rp[r + 1] += rp[r];
    for (int64_t c = 0; c < in; ++c) cp[c + 1] += cp[c];
    for (int32_t k : by_col) {
      n.rows.push_back(links[k].first);
      n.perm.push_back(k);
    }
    for (int64_t k = 0; k < padding; ++k) {
      n.cols.push_back(Uniform(0, in - 1));
      n.rows.push_back(Uniform(0, out - 1));
      n.perm.push_back(live + k);
    }
    n.rowptr.insert(n.rowptr.end(), rp.begin(), rp.end());
    n.colptr.insert(n.colptr.end(), cp.begin(), cp.end());
  }
  for (auto* v : {&n.rowptr, &n.cols, &n.colptr, &n.rows, &n.perm}) v->shrink_to_fit();
  n.s.Finish();
  return n;
}

// Plain loops in double over [features][batch], with the sums of |terms| as error scales.
template <typename T>
void Check(const Net& n, double eps) {
  const rlx2::Spec& s = n.s;
  const int64_t B = s.batch, L = s.layers;
  const auto flat = RandomVector<T>(s.parameters);
  const auto x = RandomVector<T>(B * s.width[0]), dy = RandomVector<T>(B * s.width[L]);
  std::vector<T> y(B * s.width[L]), acts(s.acts), dflat(s.parameters), dx(x.size());
  std::vector<T> grads(s.grads), y2(y.size());
  const int64_t cut = Uniform(0, B / 64) * 64;
  rlx2::Forward<T>(s, n.View(), flat.data(), x.data(), 0, cut, y.data(), acts.data());
  rlx2::Forward<T>(s, n.View(), flat.data(), x.data(), cut, B, y.data(), acts.data());
  rlx2::Forward<T>(s, n.View(), flat.data(), x.data(), 0, B, y2.data(), nullptr);
  if (y != y2) Fail("kept and not kept", 0, 1);
  std::vector<T> turned(s.links), turned_above(s.links);
  rlx2::Transpose<T>(s, n.View(), flat.data(), 0, turned.data());
  rlx2::Transpose<T>(s, n.View(), flat.data(), 1, turned_above.data());
  rlx2::Backward<T>(s, n.View(), turned.data(), acts.data(), dy.data(), 0, cut, dflat.data(),
                    dx.data(), grads.data());
  rlx2::Backward<T>(s, n.View(), turned.data(), acts.data(), dy.data(), cut, B, dflat.data(),
                    dx.data(), grads.data());
  std::vector<T> dx2(x.size()), dflat2(s.parameters);
  rlx2::Backward<T>(s, n.View(), turned.data(), acts.data(), dy.data(), 0, B, nullptr, dx2.data(),
                    nullptr);
  if (dx != dx2) Fail("dx alone", 0, 1);
  rlx2::Backward<T>(s, n.View(), turned_above.data(), acts.data(), dy.data(), 0, B, dflat2.data(), nullptr,
                    nullptr);

  const auto at = [&](int64_t f, int64_t features, int64_t b) {
    return s.feature_major ? f * B + b : b * features + f;
  };
  std::vector<double> gflat(s.parameters), gscale(s.parameters);
  for (int64_t b = 0; b < B; ++b) {
    std::vector<std::vector<double>> a(L + 1), scale(L + 1);
    for (int64_t l = 0; l <= L; ++l) {
      a[l].assign(s.width[l], 0);
      scale[l].assign(s.width[l], 1);
    }
    for (int64_t f = 0; f < s.width[0]; ++f) a[0][f] = x[at(f, s.width[0], b)];
    for (int64_t l = 0; l < L; ++l) {
      for (int64_t r = 0; r < s.width[l + 1]; ++r) {
        double sum = flat[s.bias[l] + r], size = std::fabs(sum) + 1;
        for (int32_t k = n.rowptr[s.rowptr[l] + r]; k < n.rowptr[s.rowptr[l] + r + 1]; ++k) {
          const int32_t c = n.cols[s.link[l] + k];
          const double v = flat[s.link[l] + k];
          sum += v * a[l][c];
          size += std::fabs(v) * (std::fabs(a[l][c]) + scale[l][c]);
        }
        const bool relu = l + 1 < L || s.relu_last;
        a[l + 1][r] = relu && sum < 0 ? 0 : sum;
        scale[l + 1][r] = size;
      }
    }
    std::vector<double> g(s.width[L]), size(s.width[L]);
    for (int64_t r = 0; r < s.width[L]; ++r) {
      Close("y", y[at(r, s.width[L], b)], a[L][r], scale[L][r], eps);
      g[r] = dy[at(r, s.width[L], b)];
      size[r] = std::fabs(g[r]);
      // The kernels' own ReLU decides near zero.
      if (s.relu_last && !(y[at(r, s.width[L], b)] > 0)) g[r] = 0;
    }
    const int64_t block = b < B / 64 * 64 ? 64 : 0;
    for (int64_t l = L - 1; l >= 0; --l) {
      std::vector<double> down(s.width[l], 0), down_size(s.width[l], 0);
      for (int64_t r = 0; r < s.width[l + 1]; ++r) {
        gflat[s.bias[l] + r] += g[r];
        gscale[s.bias[l] + r] += size[r];
        for (int32_t k = n.rowptr[s.rowptr[l] + r]; k < n.rowptr[s.rowptr[l] + r + 1]; ++k) {
          const int32_t c = n.cols[s.link[l] + k];
          const double v = flat[s.link[l] + k];
          gflat[s.link[l] + k] += g[r] * a[l][c];
          gscale[s.link[l] + k] += size[r] * (std::fabs(a[l][c]) + scale[l][c]);
          down[c] += v * g[r];
          down_size[c] += std::fabs(v) * size[r];
        }
      }
      if (l > 0 && block == 64) {  // gate as the kernels saw it: whole blocks are easy to address
        for (int64_t c = 0; c < s.width[l]; ++c) {
          if (!(acts[s.act[l] + b / 64 * 64 * s.width[l] + c * 64 + b % 64] > 0)) down[c] = 0;
        }
      } else if (l > 0) {
        for (int64_t c = 0; c < s.width[l]; ++c) {
          if (!(a[l][c] > 0)) down[c] = 0;
        }
      }
      g = down;
      size = down_size;
    }
    for (int64_t f = 0; f < s.width[0]; ++f) {
      Close("dx", dx[at(f, s.width[0], b)], g[f], size[f], eps);
    }
  }
  for (int64_t i = 0; i < s.parameters; ++i) {
    Close("dflat", dflat[i], gflat[i], gscale[i], eps);
    Close("dflat alone", dflat2[i], gflat[i], gscale[i], eps);
  }
}

// Layers that have all their links give to the last bit what their links give one by one.
template <typename T>
void Full() {
  const int64_t rows = Uniform(1, 9), inputs = Uniform(1, 9), W = 64;
  std::vector<int32_t> pointer, index;
  for (int64_t r = 0; r <= rows; ++r) pointer.push_back(r * inputs);
  for (int64_t k = 0; k < rows * inputs; ++k) index.push_back(k % inputs);
  const auto value = RandomVector<T>(rows * inputs), bias = RandomVector<T>(rows);
  const auto x = RandomVector<T>(inputs * W), gate = RandomVector<T>(rows * W);
  std::vector<T> full(rows * W), links(rows * W);
  const bool relu = Uniform(0, 1);
  for (auto* y : {&full, &links}) {
    const int64_t known = y == &full ? inputs : 0;  // none: not seen to be full
    const rlx2::Links<T> m{rows, known, pointer.data(), index.data(), value.data()};
    rlx2::Product<T, 64>(m, relu ? bias.data() : nullptr, x.data(), relu ? nullptr : gate.data(),
                         relu, y->data());
  }
  if (full != links) Fail("a full layer", 0, 1);
}

// Damaged indices must be recognised before they are followed.
void Damage(Net n) {
  if (!rlx2::Valid(n.s, n.View())) Fail("a good index is refused", 0, 1);
  std::vector<int32_t>* arrays[] = {&n.rowptr, &n.cols, &n.colptr, &n.rows, &n.perm};
  std::vector<int32_t>& a = *arrays[Uniform(0, 4)];
  if (a.empty()) return;
  static const int32_t values[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};
  a[Uniform(0, a.size() - 1)] = values[Uniform(0, 3)];
  if (rlx2::Valid(n.s, n.View())) Fail("a damaged index is accepted", 1, 0);
}

}  // namespace

int main(int argc, char** argv) {
  return Fuzz(argc, argv, [] {
    const Net n = RandomNet();
    Check<float>(n, 2e-6);
    Check<double>(n, 1e-14);
    Full<float>();
    Full<double>();
    Damage(n);
  });
}
