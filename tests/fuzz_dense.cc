// Random networks of hostile shapes through the dense kernels, for a build with
// -fsanitize=address,undefined. Every array is its own heap block of the exact size, so a read or
// write one element outside is caught; results are compared with plain loops in double.
//
//   fuzz_dense SEED COUNT

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "dense.h"
#include "fuzz.h"

namespace {

template <typename T>
using Arrays = std::vector<std::vector<T>>;

// What is not written stays a NaN, which is close to nothing.
template <typename T>
std::vector<T> Unwritten(int64_t n) {
  return std::vector<T>(n, std::nan(""));
}

template <typename T>
std::vector<T*> Pointers(Arrays<T>& arrays) {
  std::vector<T*> to;
  for (auto& a : arrays) to.push_back(a.data());
  return to;
}

// Calls f(begin, end) for parts of odd sizes that cover the batch.
template <typename F>
void InParts(int64_t batch, const F& f) {
  for (int64_t begin = 0; begin < batch;) {
    const int64_t end = std::min(batch, begin + Uniform(1, 20));
    f(begin, end);
    begin = end;
  }
}

template <typename T>
void Check(const std::vector<int64_t>& width, int64_t batch, double eps) {
  const int64_t layers = static_cast<int64_t>(width.size()) - 1;
  Arrays<T> kernel, bias, acts, dkernel, dbias;
  for (int64_t l = 0; l < layers; ++l) {
    kernel.push_back(RandomVector<T>(width[l] * width[l + 1]));
    if (Uniform(0, 1)) {  // a sparse layer, down to none of its links
      const double density = 0.1 * Uniform(0, 2);
      for (T& weight : kernel.back()) weight *= Uniform(0, 99) < 100 * density;
    }
    bias.push_back(RandomVector<T>(width[l + 1]));
    dkernel.push_back(Unwritten<T>(width[l] * width[l + 1]));
    dbias.push_back(Unwritten<T>(width[l + 1]));
    if (l + 1 < layers) acts.push_back(Unwritten<T>(batch * width[l + 1]));
  }
  const auto x = RandomVector<T>(batch * width[0]), dy = RandomVector<T>(batch * width[layers]);
  auto y = Unwritten<T>(dy.size()), y2 = y, dx = Unwritten<T>(x.size()), dx2 = dx;

  rlx2::dense::Net<T> net;
  net.x = x.data();
  for (auto& k : kernel) net.kernel.push_back(k.data());
  for (auto& b : bias) net.bias.push_back(b.data());
  const rlx2::dense::Forward<T> forward(width);
  std::vector<T> scratch(forward.size);
  for (int64_t i = 0; i < forward.blocks; ++i) forward.Pack(net, scratch.data(), i);
  InParts(batch, [&](int64_t b, int64_t e) { forward.Rows(net, scratch.data(), b, e, y2.data()); });
  net.acts = Pointers(acts);
  InParts(batch, [&](int64_t b, int64_t e) { forward.Rows(net, scratch.data(), b, e, y.data()); });
  for (size_t i = 0; i < y.size(); ++i) Close("y without acts", y2[i], y[i], 0, 0);

  net.dkernel = Pointers(dkernel);
  net.dbias = Pointers(dbias);
  const auto backward = [&](bool params, bool down, T* to) {
    const rlx2::dense::Backward<T> pass(width, batch, params, down);
    std::vector<T> own(pass.size);
    for (int64_t i = 0; i < pass.packs; ++i) pass.Pack(net, own.data(), i);
    InParts(batch, [&](int64_t b, int64_t e) { pass.Rows(net, own.data(), dy.data(), b, e, to); });
    for (int64_t i = 0; i < pass.blocks; ++i) pass.Weights(net, own.data(), dy.data(), i);
  };
  backward(true, true, dx.data());
  const Arrays<T> first = dkernel;
  backward(true, false, nullptr);
  if (first != dkernel) Fail("weights without dx", 0, 1);
  backward(false, true, dx2.data());
  if (dx != dx2) Fail("dx without weights", 0, 1);

  // Plain loops in double, with the sums of |terms| as error scales; near zero the kernels' own
  // ReLU decides.
  Arrays<double> gk, gk_size, gb, gb_size;
  for (int64_t l = 0; l < layers; ++l) {
    gk.push_back(std::vector<double>(width[l] * width[l + 1]));
    gb.push_back(std::vector<double>(width[l + 1]));
  }
  gk_size = gk;
  gb_size = gb;
  for (int64_t b = 0; b < batch; ++b) {
    const auto input = [&](int64_t l, int64_t i) {
      return double(l > 0 ? acts[l - 1][b * width[l] + i] : x[b * width[0] + i]);
    };
    for (int64_t l = 0; l < layers; ++l) {
      for (int64_t o = 0; o < width[l + 1]; ++o) {
        double sum = bias[l][o], size = std::fabs(sum);
        for (int64_t i = 0; i < width[l]; ++i) {
          const double term = input(l, i) * kernel[l][i * width[l + 1] + o];
          sum += term;
          size += std::fabs(term);
        }
        if (l + 1 == layers) {
          Close("y", y[b * width[l + 1] + o], sum, size, eps);
        } else {
          Close("acts", input(l + 1, o), sum < 0 ? 0 : sum, size, eps);
        }
      }
    }
    std::vector<double> g(dy.begin() + b * width[layers], dy.begin() + (b + 1) * width[layers]);
    std::vector<double> size(g);
    for (double& s : size) s = std::fabs(s);
    for (int64_t l = layers - 1; l >= 0; --l) {
      std::vector<double> down(width[l]), down_size(width[l]);
      for (int64_t o = 0; o < width[l + 1]; ++o) {
        gb[l][o] += g[o];
        gb_size[l][o] += size[o];
        for (int64_t i = 0; i < width[l]; ++i) {
          const double v = kernel[l][i * width[l + 1] + o], a = input(l, i);
          gk[l][i * width[l + 1] + o] += a * g[o];
          gk_size[l][i * width[l + 1] + o] += std::fabs(a) * size[o];
          if (l > 0 && !(a > 0)) continue;
          down[i] += v * g[o];
          down_size[i] += std::fabs(v) * size[o];
        }
      }
      g = down;
      size = down_size;
    }
    for (int64_t i = 0; i < width[0]; ++i) Close("dx", dx[b * width[0] + i], g[i], size[i], eps);
  }
  for (int64_t l = 0; l < layers; ++l) {
    for (size_t i = 0; i < gk[l].size(); ++i) {
      Close("dkernel", dkernel[l][i], gk[l][i], gk_size[l][i], eps);
    }
    for (size_t i = 0; i < gb[l].size(); ++i) {
      Close("dbias", dbias[l][i], gb[l][i], gb_size[l][i], eps);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return Fuzz(argc, argv, [] {
    static const int64_t widths[] = {1, 1, 2, 3, 5, 8, 13, 16, 17, 32, 40, 64, 65, 70, 130};
    std::vector<int64_t> width(Uniform(2, 5));
    for (int64_t& w : width) w = widths[Uniform(0, 14)];
    const int64_t batch = Uniform(1, 40);
    Check<float>(width, batch, 2e-6);
    Check<double>(width, batch, 1e-14);
  });
}
