// Fills this rank's part of a global tensor with random numbers that depend on the seed, the
// operation and each element's index in the global tensor alone. So they are equal where ranks hold
// the same elements, independent where they do not, and the same for every mesh and sharding.
//
// `local` is the box of the global tensor (contiguous indices, of global_sizes) that begins at
// `offsets`; any strides, may be empty. On a device other than the CPU the numbers are made on the
// CPU and copied. Element i of the global tensor takes words i * n .. i * n + n - 1 of the sequence
// (philox.h), n given below.
//
//   fill_uniform      floating   [from, to), as many bits as the dtype has         n = 1, f64: 2
//   fill_normal       floating   Box and Muller                                    n = 2, f64: 4
//   fill_bernoulli    any        1 with probability p, exact to 2^-32              n = 1
//   fill_integers     any        from .. from + range - 1; range 0 is 2^64          n = 2
//   fill_exponential  floating   greater than 0                                    n = 2
//   fill_cauchy       floating                                                     n = 2
//   fill_log_normal   floating   exp of fill_normal's                              n = 2, f64: 4
//   fill_geometric    any        trials until the first success, 1 or more         n = 2
//
// Complex tensors, uniform and normal alone: each element is its two parts, one after the other, as
// a last dimension of 2. Both parts of uniform numbers are in [from, to); both of normal numbers
// have the mean and half of the variance.
//
// float16 and bfloat16: computed in float32 and rounded. Not the numbers of LibTorch's generators.
// Threads: at::parallel_for inside. Errors: c10::ValueError for parameters out of range and for a
// box outside of the global tensor; c10::NotImplementedError for a dtype that is not listed.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"
#include "parallel/shard/random/random_operation.h"

namespace meshrun {

struct RandomBox {
  at::IntArrayRef global_sizes;
  at::IntArrayRef offsets;
};

void fill_uniform(const at::Tensor& local, const RandomBox& box, const RandomOperation& operation,
                  double from = 0, double to = 1);
void fill_normal(const at::Tensor& local, const RandomBox& box, const RandomOperation& operation,
                 double mean = 0, double std = 1);
void fill_bernoulli(const at::Tensor& local, const RandomBox& box, const RandomOperation& operation,
                    double probability);
// One probability per element, floating, of local's shape.
void fill_bernoulli(const at::Tensor& local, const RandomBox& box, const RandomOperation& operation,
                    const at::Tensor& probabilities);
void fill_integers(const at::Tensor& local, const RandomBox& box, const RandomOperation& operation,
                   int64_t from, uint64_t range);
void fill_exponential(const at::Tensor& local, const RandomBox& box,
                      const RandomOperation& operation, double lambda);
void fill_cauchy(const at::Tensor& local, const RandomBox& box, const RandomOperation& operation,
                 double median, double sigma);
void fill_log_normal(const at::Tensor& local, const RandomBox& box,
                     const RandomOperation& operation, double mean, double std);
void fill_geometric(const at::Tensor& local, const RandomBox& box, const RandomOperation& operation,
                    double probability);

}  // namespace meshrun
