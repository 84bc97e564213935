#include "parallel/shard/random/counter_random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "ATen/Dispatch.h"
#include "ATen/Dispatch_v2.h"
#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/view_as_real.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/random/box_runs.h"
#include "parallel/shard/random/philox.h"

namespace meshrun {
namespace {

using at::Tensor;

constexpr int64_t kChunk = 256;  // elements whose words are made at once
constexpr int64_t kGrain = 8192;

void check_box(const Tensor& local, const RandomBox& box) {
  bool fits = box.global_sizes.size() == static_cast<size_t>(local.dim()) &&
              box.offsets.size() == box.global_sizes.size();
  for (size_t dim = 0; fits && dim < box.offsets.size(); ++dim) {
    const int64_t size = local.size(static_cast<int64_t>(dim));
    fits = box.offsets[dim] >= 0 && box.offsets[dim] + size <= box.global_sizes[dim];
  }
  if (local.numel() == 0) fits = box.global_sizes.size() == static_cast<size_t>(local.dim());
  TORCH_CHECK_VALUE(fits, fmt::format("a part [{}] at [{}] does not lie in a tensor [{}]",
                                      fmt::join(local.sizes(), ", "), fmt::join(box.offsets, ", "),
                                      fmt::join(box.global_sizes, ", ")));
}

uint64_t join(const uint32_t* words) { return uint64_t{words[1]} << 32 | words[0]; }

// (0, 1), symmetric and without its ends.
double open_unit(uint32_t word) { return (word + 0.5) * 0x1p-32; }
double open_unit(uint64_t word) { return (static_cast<double>(word >> 12) + 0.5) * 0x1p-52; }

// [0, 1) in as many bits as T has, so that no value is rounded up to 1.
template <typename T>
struct Uniform {
  static constexpr int kWords = 1;
  using Wide = float;
  static Wide draw(const uint32_t* words) {
    constexpr int kBits = std::numeric_limits<T>::digits;
    return static_cast<float>(words[0] >> (32 - kBits)) / static_cast<float>(1U << kBits);
  }
};

template <>
struct Uniform<double> {
  static constexpr int kWords = 2;
  using Wide = double;
  static Wide draw(const uint32_t* words) {
    return static_cast<double>(join(words) >> 11) * 0x1p-53;
  }
};

// Standard normal.
template <typename T>
struct Normal {
  static constexpr int kWords = 2;
  using Wide = float;
  static Wide draw(const uint32_t* words) {
    const auto u = static_cast<float>(open_unit(words[0]));
    const auto angle = static_cast<float>(words[1]) * static_cast<float>(0x1p-32);
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi_v<float> * angle);
  }
};

template <>
struct Normal<double> {
  static constexpr int kWords = 4;
  using Wide = double;
  static Wide draw(const uint32_t* words) {
    const double u = open_unit(join(words));
    const double angle = static_cast<double>(join(words + 2) >> 11) * 0x1p-53;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * angle);
  }
};

// Calls write(local index, words of its element) for all elements.
template <int kWords, typename Write>
void for_each(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
              const Write& write) {
  const auto span = [](at::IntArrayRef a) { return std::span<const int64_t>(a.data(), a.size()); };
  const BoxRuns runs(span(box.global_sizes), span(box.offsets), span(local.sizes()));
  const WordSequence sequence{operation.seed, operation.counter};
  at::parallel_for(0, runs.num_elements(), kGrain, [&](int64_t begin, int64_t end) {
    uint32_t words[kChunk * kWords];
    runs.visit(begin, end, [&](int64_t index, uint64_t global, int64_t length) {
      for (int64_t done = 0; done < length; done += kChunk) {
        const int64_t count = std::min(kChunk, length - done);
        sequence.read((global + static_cast<uint64_t>(done)) * kWords,
                      static_cast<size_t>(count * kWords), words);
        for (int64_t i = 0; i < count; ++i) write(index + done + i, words + i * kWords);
      }
    });
  });
}

// Contiguous memory on the CPU to fill: local's own, or what is copied to it at the end.
template <typename Fill>
void fill(const Tensor& local, const RandomBox& box, const Fill& fill_contiguous) {
  check_box(local, box);
  if (local.numel() == 0) return;
  if (local.device().is_cpu() && local.is_contiguous()) {
    fill_contiguous(local);
    return;
  }
  const Tensor filled = at::empty(local.sizes(), local.scalar_type());
  fill_contiguous(filled);
  local.copy_(filled);
}

// map(T's draw) for every element, T floating.
template <template <typename> typename Draw, typename Map>
void fill_floating(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                   const Map& map) {
  fill(local, box, [&](const Tensor& filled) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, filled.scalar_type(), "random numbers", [&] {
          using Source = Draw<scalar_t>;
          scalar_t* const data = filled.mutable_data_ptr<scalar_t>();
          for_each<Source::kWords>(filled, box, operation,
                                   [&](int64_t index, const uint32_t* words) {
                                     data[index] = static_cast<scalar_t>(map(Source::draw(words)));
                                   });
        });
  });
}

// make(words of its element) for every element, of any dtype.
template <int kWords, typename Make>
void fill_any(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
              const Make& make) {
  fill(local, box, [&](const Tensor& filled) {
    AT_DISPATCH_V2(filled.scalar_type(), "random numbers", AT_WRAP([&] {
                     scalar_t* const data = filled.mutable_data_ptr<scalar_t>();
                     for_each<kWords>(filled, box, operation,
                                      [&](int64_t index, const uint32_t* words) {
                                        data[index] = static_cast<scalar_t>(make(index, words));
                                      });
                   }),
                   AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16);
  });
}

// The real and the imaginary parts of a complex tensor: a last dimension of 2.
struct Parts {
  Parts(const Tensor& local, const RandomBox& box)
      : tensor(at::view_as_real(local)),
        global_sizes(box.global_sizes.vec()),
        offsets(box.offsets.vec()) {
    global_sizes.push_back(2);
    offsets.push_back(0);
  }
  RandomBox box() const { return {global_sizes, offsets}; }

  const Tensor tensor;
  std::vector<int64_t> global_sizes;
  std::vector<int64_t> offsets;
};

bool is_probability(double value) { return value >= 0 && value <= 1; }

}  // namespace

void fill_uniform(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                  double from, double to) {
  TORCH_CHECK_VALUE(from <= to, fmt::format("uniform numbers from {} to {}", from, to));
  if (local.is_complex()) {
    const Parts parts(local, box);
    fill_uniform(parts.tensor, parts.box(), operation, from, to);
    return;
  }
  fill_floating<Uniform>(local, box, operation, [=](auto u) {
    using Wide = decltype(u);
    return u * static_cast<Wide>(to - from) + static_cast<Wide>(from);
  });
}

void fill_normal(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                 double mean, double std) {
  TORCH_CHECK_VALUE(std >= 0, fmt::format("normal numbers with standard deviation {}", std));
  if (local.is_complex()) {
    const Parts parts(local, box);
    fill_normal(parts.tensor, parts.box(), operation, mean, std / std::numbers::sqrt2);
    return;
  }
  fill_floating<Normal>(local, box, operation, [=](auto x) {
    using Wide = decltype(x);
    return x * static_cast<Wide>(std) + static_cast<Wide>(mean);
  });
}

void fill_bernoulli(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                    double probability) {
  TORCH_CHECK_VALUE(is_probability(probability),
                    fmt::format("bernoulli with probability {}", probability));
  const auto bound = static_cast<uint64_t>(std::llround(probability * 0x1p32));
  fill_any<1>(local, box, operation,
              [=](int64_t, const uint32_t* words) { return words[0] < bound ? 1 : 0; });
}

void fill_bernoulli(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                    const Tensor& probabilities) {
  TORCH_CHECK_VALUE(
      probabilities.sizes() == local.sizes() && at::isFloatingType(probabilities.scalar_type()),
      "bernoulli takes one floating probability per element");
  const Tensor wide = probabilities.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* const p = wide.const_data_ptr<double>();
  for (int64_t i = 0; i < wide.numel(); ++i) {
    TORCH_CHECK_VALUE(is_probability(p[i]), fmt::format("bernoulli with probability {}", p[i]));
  }
  fill_any<1>(local, box, operation, [=](int64_t index, const uint32_t* words) {
    return words[0] < static_cast<uint64_t>(std::llround(p[index] * 0x1p32)) ? 1 : 0;
  });
}

void fill_integers(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                   int64_t from, uint64_t range) {
  fill_any<2>(local, box, operation, [=](int64_t, const uint32_t* words) {
    const uint64_t word = join(words);
    // The high half of word * range: uniform to 2^-64 of the range.
    const uint64_t drawn =
        range == 0 ? word
                   : static_cast<uint64_t>((static_cast<unsigned __int128>(word) * range) >> 64);
    return static_cast<int64_t>(static_cast<uint64_t>(from) + drawn);
  });
}

void fill_exponential(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                      double lambda) {
  TORCH_CHECK_VALUE(lambda > 0, fmt::format("exponential numbers with lambda {}", lambda));
  fill_any<2>(local, box, operation, [=](int64_t, const uint32_t* words) {
    return -std::log(open_unit(join(words))) / lambda;
  });
}

void fill_cauchy(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                 double median, double sigma) {
  TORCH_CHECK_VALUE(sigma > 0, fmt::format("Cauchy numbers with sigma {}", sigma));
  fill_any<2>(local, box, operation, [=](int64_t, const uint32_t* words) {
    return median + sigma * std::tan(std::numbers::pi * (open_unit(join(words)) - 0.5));
  });
}

void fill_log_normal(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                     double mean, double std) {
  TORCH_CHECK_VALUE(std > 0, fmt::format("log-normal numbers with standard deviation {}", std));
  fill_floating<Normal>(local, box, operation, [=](auto x) {
    using Wide = decltype(x);
    return std::exp(x * static_cast<Wide>(std) + static_cast<Wide>(mean));
  });
}

void fill_geometric(const Tensor& local, const RandomBox& box, const RandomOperation& operation,
                    double probability) {
  TORCH_CHECK_VALUE(probability > 0 && probability < 1,
                    fmt::format("geometric numbers with probability {}", probability));
  const double divisor = std::log1p(-probability);
  fill_any<2>(local, box, operation, [=](int64_t, const uint32_t* words) {
    return std::ceil(std::log(open_unit(join(words))) / divisor);
  });
}

}  // namespace meshrun
