#include "tests/bench/fft/contenders.h"

#include <fftw3-mpi.h>

#include <complex>
#include <numeric>

#include "ATen/ATen.h"
#include "parallel/base/split.h"
#include "parallel/fft/distributed_fft.h"
#include "third_party/libtorch/shims.h"

namespace meshrun::bench {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

Tensor piece(const Tensor& whole, int64_t dim, const Sizes& sizes, int rank) {
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return whole.narrow(dim, begin, sizes[static_cast<size_t>(rank)]);
}

double relative(const Tensor& result, const Tensor& expected) {
  const double norm = at::linalg_vector_norm(expected).item<double>();
  return at::linalg_vector_norm(result - expected).item<double>() / (norm > 0 ? norm : 1);
}

Tensor canonical(const Tensor& whole) {
  return at::fft_rfft2(whole, std::nullopt, Sizes{-2, -1}, "ortho");
}

Tensor paired_of(const Tensor& whole) {
  return at::fft_rfft2(whole, std::nullopt, Sizes{-1, -2}, "ortho");
}

}  // namespace

Tensor FftProblem::whole() const {
  at::manual_seed(1);
  return at::randn({planes, height, width});
}

Tensor FftProblem::field() const { return piece(whole(), 2, columns, rank).contiguous(); }

FftContender our_forward(const FftProblem& problem, const Group& ucx, bool paired) {
  FftOptions options{.group = ucx, .layout = paired ? FftLayout::kPaired : FftLayout::kCanonical};
  options.input_sizes = problem.columns;
  options.fewest_bytes = false;  // as the manager finds it on one host
  auto transform = std::make_shared<DistributedRFFT2>(options);
  const Tensor x = problem.field();
  return {paired ? "paired" : "canonical", "", [=] { return (*transform)(x); },
          [=](const Tensor& result) {
            const Tensor all = paired ? paired_of(problem.whole()) : canonical(problem.whole());
            const Sizes rows = compute_split_shapes(all.size(1), problem.size);
            return relative(result, piece(all, 1, rows, problem.rank));
          }};
}

FftContender our_inverse(const FftProblem& problem, const Group& ucx, bool paired) {
  const Tensor all = paired ? paired_of(problem.whole()) : canonical(problem.whole());
  const Sizes rows = compute_split_shapes(all.size(1), problem.size);
  const Tensor x = piece(all, 1, rows, problem.rank).contiguous();
  FftOptions options{.s = {problem.height, problem.width},
                     .group = ucx,
                     .layout = paired ? FftLayout::kPaired : FftLayout::kCanonical};
  options.input_sizes = rows;
  options.output_sizes = problem.columns;
  options.fewest_bytes = false;
  auto transform = std::make_shared<DistributedIRFFT2>(options);
  return {paired ? "paired_inverse" : "canonical_inverse", "", [=] { return (*transform)(x); },
          [=](const Tensor& result) { return relative(result, problem.field()); }};
}

FftContender our_modes(const FftProblem& problem, const Group& ucx, int64_t modes) {
  FftOptions options{.group = ucx, .layout = FftLayout::kPaired, .modes = {modes, modes}};
  options.input_sizes = problem.columns;
  auto transform = std::make_shared<DistributedRFFT2>(options);
  const Tensor x = problem.field();
  return {"modes", "the lowest " + std::to_string(modes), [=] { return (*transform)(x); },
          [=](const Tensor& result) {
            const Tensor rows = paired_of(problem.whole()).narrow(1, 0, modes);
            const Tensor all = at::cat(
                {rows.narrow(2, 0, modes), rows.narrow(2, problem.width - modes, modes)}, 2);
            const Sizes own = compute_split_shapes(modes, problem.size);
            return relative(result, piece(all, 1, own, problem.rank));
          }};
}

FftContender physicsnemo_forward(const FftProblem& problem, const Group& group, const char* name) {
  FftContender contender;
  contender.name = name;
  const int64_t p = problem.size;
  if (problem.height % p != 0 || problem.width % p != 0) {
    contender.note = "PhysicsNeMo's needs extents that divide";
    return contender;
  }
  const Tensor x = problem.field();
  contender.note = "PhysicsNeMo's steps in C++, all-to-all of one flat buffer";
  contender.call = [=] {
    Tensor y = at::fft_fft(x, std::nullopt, 1, "ortho");
    // The list of contiguous pieces that it sends, as one flat buffer.
    std::vector<Tensor> sent;
    for (Tensor& rows : y.split(problem.height / p, 1)) sent.push_back(rows.contiguous());
    Tensor input = at::stack(sent);
    Tensor output = at::empty_like(input);
    Sizes even(static_cast<size_t>(p), 1);
    // Gloo knows no complex numbers.
    Tensor real_input = at::view_as_real(input);
    Tensor real_output = at::view_as_real(output);
    libtorch::all_to_all_single(*group, real_output, real_input, even, even)->wait();
    std::vector<Tensor> received;
    for (int64_t r = 0; r < p; ++r) received.push_back(output[r]);
    y = at::fft_fft(at::cat(received, 2), std::nullopt, 2, "ortho");
    return y.narrow(2, 0, problem.width / 2 + 1).contiguous();
  };
  contender.error = [=](const Tensor& result) {
    const Sizes rows(static_cast<size_t>(p), problem.height / p);
    return relative(result, piece(canonical(problem.whole()), 1, rows, problem.rank));
  };
  return contender;
}

namespace {

// FFTW splits the first dimension: its first is our width, and a rank's columns lie one after
// another. Planes are transformed one by one, by one plan.
class FftwPlan {
 public:
  explicit FftwPlan(const FftProblem& problem) : problem_(problem) {
    fftwf_mpi_init();
    const ptrdiff_t n[2] = {problem.width, problem.height / 2 + 1};
    ptrdiff_t rows = 0, first = 0, transposed_rows = 0, transposed_first = 0;
    block_ = fftwf_mpi_local_size_many_transposed(2, n, 1, FFTW_MPI_DEFAULT_BLOCK,
                                                  FFTW_MPI_DEFAULT_BLOCK, MPI_COMM_WORLD, &rows,
                                                  &first, &transposed_rows, &transposed_first);
    rows_ = rows;
    first_ = first;
    transposed_rows_ = transposed_rows;
    transposed_first_ = transposed_first;
    in_ = fftwf_alloc_real(static_cast<size_t>(2 * block_ * problem.planes));
    out_ = fftwf_alloc_complex(static_cast<size_t>(block_ * problem.planes));
    plan_ = fftwf_mpi_plan_dft_r2c_2d(problem.width, problem.height, in_, out_, MPI_COMM_WORLD,
                                      FFTW_MEASURE | FFTW_MPI_TRANSPOSED_OUT);
    // [planes, own width, height padded to 2 (height / 2 + 1)].
    const Tensor whole = problem.whole();
    const int64_t padded = 2 * (problem.height / 2 + 1);
    for (int64_t plane = 0; plane < problem.planes; ++plane) {
      Tensor to = at::from_blob(in_ + 2 * block_ * plane, {rows_, padded});
      to.narrow(1, 0, problem.height).copy_(whole[plane].narrow(1, first_, rows_).transpose(0, 1));
    }
  }
  Tensor execute() {
    for (int64_t plane = 0; plane < problem_.planes; ++plane) {
      fftwf_mpi_execute_dft_r2c(plan_, in_ + 2 * block_ * plane, out_ + block_ * plane);
    }
    return at::from_blob(out_, {problem_.planes, transposed_rows_, problem_.width},
                         {block_, problem_.width, 1}, at::kComplexFloat);
  }
  double error(const Tensor& result) const {
    const Tensor all = at::fft_rfft2(problem_.whole(), std::nullopt, Sizes{-1, -2}, "backward");
    return relative(result, all.narrow(1, transposed_first_, transposed_rows_));
  }

 private:
  FftProblem problem_;
  int64_t block_ = 0, rows_ = 0, first_ = 0, transposed_rows_ = 0, transposed_first_ = 0;
  float* in_ = nullptr;
  fftwf_complex* out_ = nullptr;
  fftwf_plan plan_ = nullptr;
};

}  // namespace

FftContender fftw_forward(const FftProblem& problem) {
  auto plan = std::make_shared<FftwPlan>(problem);
  return {"fftw_mpi", "FFTW's blocks, columns together in memory, no scaling, output not allocated",
          [=] { return plan->execute(); },
          [=](const Tensor& result) { return plan->error(result); }};
}

}  // namespace meshrun::bench
