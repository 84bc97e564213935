#include "tests/bench/collectives/contender.h"

#include <mpi/mpi.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "c10/util/Exception.h"

namespace meshrun::bench {

int64_t& copied_bytes() {
  static int64_t bytes = 0;
  return bytes;
}

std::vector<int64_t> counts_of(const Problem& problem, const std::vector<int64_t>& extents) {
  const int64_t beside = problem.shape[1 - problem.dim];
  std::vector<int64_t> counts;
  for (const int64_t extent : extents) counts.push_back(extent * beside);
  return counts;
}

at::Tensor flat_for(const Problem& problem, const std::vector<int64_t>& extents) {
  const std::vector<int64_t> counts = counts_of(problem, extents);
  return at::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})},
                   problem.input.options());
}

std::vector<at::Tensor> pieces_of(const Problem& problem, const at::Tensor& flat,
                                  const std::vector<int64_t>& extents) {
  const std::vector<int64_t> counts = counts_of(problem, extents);
  std::vector<at::Tensor> pieces;
  int64_t offset = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    pieces.push_back(flat.narrow(0, offset, counts[i]).view(problem.shape_with(extents[i])));
    offset += counts[i];
  }
  return pieces;
}

void pack(const Problem& problem, const at::Tensor& whole, const std::vector<int64_t>& extents,
          const at::Tensor& flat) {
  int64_t offset = 0;
  for (const at::Tensor& piece : pieces_of(problem, flat, extents)) {
    const int64_t extent = piece.size(problem.dim);
    piece.copy_(whole.narrow(problem.dim, offset, extent));
    offset += extent;
  }
  copied_bytes() += static_cast<int64_t>(flat.nbytes());
}

void unpack(const Problem& problem, const at::Tensor& flat, const std::vector<int64_t>& extents,
            const at::Tensor& whole) {
  int64_t offset = 0;
  for (const at::Tensor& piece : pieces_of(problem, flat, extents)) {
    const int64_t extent = piece.size(problem.dim);
    whole.narrow(problem.dim, offset, extent).copy_(piece);
    offset += extent;
  }
  copied_bytes() += static_cast<int64_t>(flat.nbytes());
}

namespace {

struct Place {
  int64_t process = 0;
  uint64_t address = 0;
};

Place next_place(const Problem& problem, const at::Tensor& mine) {
  const Place own{getpid(), reinterpret_cast<uint64_t>(mine.data_ptr())};
  Place next;
  const int to = (problem.rank + problem.size - 1) % problem.size;
  const int from = (problem.rank + 1) % problem.size;
  MPI_Sendrecv(&own, sizeof own, MPI_BYTE, to, 0, &next, sizeof next, MPI_BYTE, from, 0,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return next;
}

bool read_through_kernel(const Place& from, void* to, size_t bytes) {
  // The kernel moves at most 2 GiB at once, and may stop earlier.
  for (size_t done = 0; done < bytes;) {
    const iovec local{static_cast<std::byte*>(to) + done, bytes - done};
    const iovec remote{reinterpret_cast<void*>(from.address + done), bytes - done};
    const ssize_t moved =
        process_vm_readv(static_cast<pid_t>(from.process), &local, 1, &remote, 1, 0);
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

// Which elements of a row are gathered, and of how many rows.
struct Picked {
  int64_t rows = 1;
  int64_t row = 0;  // elements
  std::vector<int32_t> elements;
};

Picked picked_by(const Problem& problem) {
  std::vector<int64_t> indices;
  for (const at::Tensor& some : problem.indices) {
    indices.insert(indices.end(), some.const_data_ptr<int64_t>(),
                   some.const_data_ptr<int64_t>() + some.numel());
  }
  Picked picked{.row = problem.shape[0] * problem.shape[1]};
  int64_t run = 1;  // elements that lie together
  if (problem.dim == 1) {
    picked.rows = problem.shape[0];
    picked.row = problem.shape[1];
  } else if (!indices.empty()) {
    run = problem.shape[1];
  }
  if (indices.empty()) {
    indices.resize(static_cast<size_t>(picked.row));
    std::iota(indices.begin(), indices.end(), int64_t{0});
  }
  const auto element = static_cast<int64_t>(problem.input.element_size());
  const int64_t count = problem.bound_bytes / element / picked.rows;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = indices[static_cast<size_t>(i / run) % indices.size()];
    picked.elements.push_back(static_cast<int32_t>(index * run + i % run));
  }
  return picked;
}

template <typename Element>
void gather(const void* from, void* to, const Picked& picked) {
  const auto* source = static_cast<const Element*>(from);
  auto* target = static_cast<Element*>(to);
  for (int64_t row = 0; row < picked.rows; ++row, source += picked.row) {
    for (const int32_t element : picked.elements) *target++ = source[element];
  }
}

}  // namespace

std::vector<Contender> bounds(const Problem& problem) {
  // A gather reads the whole tensor, which may be longer.
  const at::Tensor from = at::ones({std::max(problem.bound_bytes, problem.what.bytes)}, at::kByte);
  const at::Tensor to = at::ones({problem.bound_bytes}, at::kByte);
  std::vector<Contender> all = {{.name = "memcpy",
                                 .call =
                                     [=] {
                                       std::memcpy(to.data_ptr(), from.data_ptr(), to.nbytes());
                                       return at::Tensor();
                                     },
                                 .has_result = false}};
  const Place next = next_place(problem, from);
  int is_permitted = read_through_kernel(next, to.data_ptr(), 1) ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &is_permitted, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (is_permitted != 0) {
    all.push_back({.name = "kernel_copy",
                   .call =
                       [=] {
                         TORCH_CHECK(read_through_kernel(next, to.data_ptr(), to.nbytes()),
                                     "process_vm_readv: ", std::strerror(errno));
                         return at::Tensor();
                       },
                   .has_result = false});
  }
  if (problem.run_bytes() >= kShortRun) return all;
  const auto gather_elements =
      problem.input.element_size() == 2 ? &gather<uint16_t> : &gather<uint32_t>;
  all.push_back({.name = "gather",
                 .call =
                     [=, picked = picked_by(problem)] {
                       gather_elements(from.data_ptr(), to.data_ptr(), picked);
                       return at::Tensor();
                     },
                 .has_result = false});
  return all;
}

}  // namespace meshrun::bench
