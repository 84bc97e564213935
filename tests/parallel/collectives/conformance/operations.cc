#include "tests/parallel/collectives/conformance/operations.h"

#include <ATen/ATen.h>

#include <numeric>

#include "parallel/collectives/collectives.h"
#include "spdlog/fmt/fmt.h"
#include "spdlog/fmt/ranges.h"
#include "tests/parallel/collectives/conformance/oracle.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Counts = std::vector<int64_t>;

constexpr int64_t kDims = 3;
// Rows that an indexed exchange chooses from.
constexpr int64_t kRows = 5;

int64_t sum(const Counts& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0});
}

// Builds the operations of one setting. Copied into each of them.
struct Maker {
  Members members;
  Setting setting;
  Counts extents;

  int64_t dim() const { return setting.dim < 0 ? setting.dim + kDims : setting.dim; }
  Counts shape(int64_t extent) const {
    Counts shape = setting.is_small ? Counts{2, 1, 1} : Counts{3, 4, 2};
    shape[dim()] = extent;
    return shape;
  }
  int root() const { return setting.root % members.size; }
  Tensor piece(int rank, int64_t salt, int64_t extent) const {
    return content(members.world_ranks[rank], salt, shape(extent), setting.type).to(members.device);
  }
  Sizes sizes() const {
    if (setting.form == SizesForm::kAbsent) return {};
    if (setting.form == SizesForm::kExtents) return Sizes(extents);
    std::vector<Counts> shapes;
    for (const int64_t extent : extents) shapes.push_back(shape(extent));
    return Sizes(shapes);
  }
  Tensor slice(const Tensor& whole, int rank) const {
    const int64_t begin = std::accumulate(extents.begin(), extents.begin() + rank, int64_t{0});
    return whole.narrow(dim(), begin, extents[rank]);
  }

  // Entry of the tables of exchanges: what `from` sends to `to`.
  int64_t between(int from, int to) const { return extents[(from + 2 * to) % members.size]; }
  std::vector<Counts> table() const {
    std::vector<Counts> rows(members.size);
    for (int from = 0; from < members.size; ++from) {
      for (int to = 0; to < members.size; ++to) rows[from].push_back(between(from, to));
    }
    return rows;
  }
  Counts received_by(int rank) const {
    Counts column;
    for (const Counts& row : table()) column.push_back(row[rank]);
    return column;
  }
  // Rows repeat, and not every row is sent.
  Tensor index(int from, int to) const {
    Counts chosen;
    for (int64_t k = 0; k < between(from, to); ++k) {
      chosen.push_back((from * 3 + to * 5 + k * 2 + k / 3) % (kRows - 1));
    }
    return at::tensor(chosen, at::kLong).to(members.device);
  }
  Tensors indices(int from) const {
    Tensors all;
    for (int to = 0; to < members.size; ++to) all.push_back(index(from, to));
    return all;
  }

  Operation all_gather() const {
    return {
        .name = "all_gather_v",
        .input = [m = *this](int rank) { return m.piece(rank, 1, m.extents[rank]); },
        .call =
            [m = *this](const Tensor& own) {
              return all_gather_v(own, m.sizes(), m.setting.dim, m.setting.use_fp32,
                                  m.members.argument);
            },
        .expected = [m = *this](const Tensors& inputs, int) { return at::cat(inputs, m.dim()); }};
  }

  Operation gather() const {
    return {.name = "gather_v",
            .input = [m = *this](int rank) { return m.piece(rank, 2, m.extents[rank]); },
            .call =
                [m = *this](const Tensor& own) {
                  return gather_v(own, m.sizes(), m.setting.dim, m.root(), m.members.argument);
                },
            .expected =
                [m = *this](const Tensors& inputs, int rank) {
                  const Tensor all = at::cat(inputs, m.dim());
                  return rank == m.root() ? all : all.narrow(m.dim(), 0, 0);
                }};
  }

  Operation scatter() const {
    return {
        .name = "scatter_v",
        .input = [m = *this](
                     int rank) { return m.piece(rank, 3, rank == m.root() ? sum(m.extents) : 0); },
        .call =
            [m = *this](const Tensor& own) {
              return scatter_v(own, m.sizes(), m.setting.dim, m.root(), m.members.argument);
            },
        .expected = [m = *this](const Tensors& inputs,
                                int rank) { return m.slice(inputs[m.root()], rank); }};
  }

  Operation reduce_scatter() const {
    return {.name = "reduce_scatter_v",
            .input = [m = *this](int rank) { return m.piece(rank, 4, sum(m.extents)); },
            .call =
                [m = *this](const Tensor& own) {
                  return reduce_scatter_v(own, m.sizes(), m.setting.dim, m.setting.use_fp32,
                                          m.members.argument);
                },
            .expected =
                [m = *this](const Tensors& inputs, int rank) {
                  Tensors slices;
                  for (const Tensor& input : inputs) slices.push_back(m.slice(input, rank));
                  return sum_in_rank_order(slices, m.setting.use_fp32);
                },
            .sums = true};
  }

  Operation indexed(bool with_plan) const {
    return {.name = with_plan ? "indexed_all_to_all_v with a plan" : "indexed_all_to_all_v",
            .input = [m = *this](int rank) { return m.piece(rank, 5, kRows); },
            .call =
                [m = *this, with_plan](const Tensor& own) {
                  const Tensors chosen = m.indices(m.members.rank);
                  if (!with_plan) {
                    return indexed_all_to_all_v(own, chosen, m.table(), m.setting.use_fp32,
                                                m.setting.dim, m.members.argument);
                  }
                  const IndexedAllToAllPlan plan(chosen, m.table(), kRows, m.members.argument);
                  const auto exchange = [&] {
                    return indexed_all_to_all_v(own, plan, m.setting.use_fp32, m.setting.dim);
                  };
                  // A plan is kept and used again.
                  if (at::GradMode::is_enabled() && own.requires_grad()) return exchange();
                  exchange();
                  return exchange();
                },
            .expected =
                [m = *this](const Tensors& inputs, int rank) {
                  Tensors rows;
                  for (int from = 0; from < m.members.size; ++from) {
                    rows.push_back(inputs[from].index_select(m.dim(), m.index(from, rank)));
                  }
                  return at::cat(rows, m.dim());
                }};
  }

  // The adjoint of the indexed exchange as a primitive: rows that were sent several times are added
  // in the order of ranks, then of positions.
  Operation indexed_backward() const {
    return {.name = "indexed_all_to_all_v_wrapper_bwd",
            .input = [m = *this](int rank) { return m.piece(rank, 6, sum(m.received_by(rank))); },
            .call =
                [m = *this](const Tensor& own) {
                  return indexed_all_to_all_v_wrapper_bwd(own, m.indices(m.members.rank), m.table(),
                                                          kRows, m.setting.use_fp32, m.setting.dim,
                                                          m.members.argument);
                },
            .expected = [m = *this](const Tensors& inputs,
                                    int rank) { return m.added_rows(inputs, rank); },
            .is_differentiable = false,
            .sums = true};
  }

  Tensor added_rows(const Tensors& inputs, int rank) const {
    std::vector<Tensors> of_row(kRows);
    for (int to = 0; to < members.size; ++to) {
      const Counts from_ranks = received_by(to);
      int64_t position = std::accumulate(from_ranks.begin(), from_ranks.begin() + rank, int64_t{0});
      const Tensor chosen = index(rank, to).cpu();
      for (int64_t k = 0; k < chosen.numel(); ++k) {
        of_row[chosen[k].item<int64_t>()].push_back(inputs[to].narrow(dim(), position++, 1));
      }
    }
    Tensors rows;
    for (const Tensors& parts : of_row) {
      rows.push_back(parts.empty() ? at::zeros(shape(1), inputs[0].options())
                                   : sum_in_rank_order(parts, setting.use_fp32));
    }
    return at::cat(rows, dim());
  }

  Operation all_to_all() const {
    return {
        .name = "all_to_all_v",
        .input = [m = *this](int rank) { return m.piece(rank, 7, sum(m.table()[rank])); },
        .call =
            [m = *this](const Tensor& own) {
              const int rank = m.members.rank;
              return all_to_all_v(own, m.table()[rank], m.received_by(rank), m.setting.dim,
                                  m.setting.dim, m.members.argument);
            },
        .expected =
            [m = *this](const Tensors& inputs, int rank) {
              Tensors received;
              for (int from = 0; from < m.members.size; ++from) {
                received.push_back(inputs[from].split_with_sizes(m.table()[from], m.dim())[rank]);
              }
              return at::cat(received, m.dim());
            }};
  }

  // Slices leave along one dimension and arrive along another: a transpose.
  Operation transposing() const {
    const int64_t output_dim = (dim() + 1) % kDims;
    return {.name = "all_to_all_v from one dim to another",
            .input =
                [m = *this, output_dim](int rank) {
                  Counts shape = m.shape(sum(m.extents));
                  shape[output_dim] = m.extents[rank];
                  return content(m.members.world_ranks[rank], 8, shape, m.setting.type)
                      .to(m.members.device);
                },
            .call =
                [m = *this, output_dim](const Tensor& own) {
                  return all_to_all_v(own, m.extents, m.extents, m.setting.dim, output_dim,
                                      m.members.argument);
                },
            .expected = [m = *this, output_dim](
                            const Tensors& inputs,
                            int rank) { return m.slice(at::cat(inputs, output_dim), rank); }};
  }

  // The specification's names, without a gradient.
  std::vector<Operation> primitives() const {
    Operation gathered_by_all = all_gather(), gathered = gather(), scattered = scatter(),
              reduced = reduce_scatter(), exchanged = indexed(false);
    gathered_by_all.name = "all_gather_v_wrapper";
    gathered_by_all.call = [m = *this](const Tensor& own) {
      return all_gather_v_wrapper(own, m.sizes(), m.setting.dim, m.members.argument);
    };
    gathered.name = "gather_v_wrapper";
    gathered.call = [m = *this](const Tensor& own) {
      return gather_v_wrapper(own, m.sizes(), m.setting.dim, m.root(), m.members.argument);
    };
    scattered.name = "scatter_v_wrapper";
    scattered.call = [m = *this](const Tensor& own) {
      return scatter_v_wrapper(own, m.sizes(), m.setting.dim, m.root(), m.members.argument);
    };
    reduced.name = "all_gather_v_bwd_wrapper";
    reduced.call = [m = *this](const Tensor& own) {
      return all_gather_v_bwd_wrapper(own, m.sizes(), m.setting.dim, m.setting.use_fp32,
                                      m.members.argument);
    };
    exchanged.name = "indexed_all_to_all_v_wrapper";
    exchanged.call = [m = *this](const Tensor& own) {
      return indexed_all_to_all_v_wrapper(own, m.indices(m.members.rank), m.table(), m.setting.dim,
                                          m.members.argument);
    };
    std::vector<Operation> all = {gathered_by_all, gathered, scattered, reduced, exchanged};
    for (Operation& operation : all) operation.is_differentiable = false;
    return all;
  }

  std::vector<Operation> asynchronous() const {
    Operation gathered_by_all = all_gather(), gathered = gather(), scattered = scatter(),
              reduced = reduce_scatter(), exchanged = indexed(false);
    gathered_by_all.name = "all_gather_v_async";
    gathered_by_all.call = [m = *this](const Tensor& own) {
      return all_gather_v_async(own, m.sizes(), m.setting.dim, m.setting.use_fp32,
                                m.members.argument)
          .wait();
    };
    gathered.name = "gather_v_async";
    gathered.call = [m = *this](const Tensor& own) {
      return gather_v_async(own, m.sizes(), m.setting.dim, m.root(), m.members.argument).wait();
    };
    scattered.name = "scatter_v_async";
    scattered.call = [m = *this](const Tensor& own) {
      return scatter_v_async(own, m.sizes(), m.setting.dim, m.root(), m.members.argument).wait();
    };
    reduced.name = "reduce_scatter_v_async";
    reduced.call = [m = *this](const Tensor& own) {
      return reduce_scatter_v_async(own, m.sizes(), m.setting.dim, m.setting.use_fp32,
                                    m.members.argument)
          .wait();
    };
    exchanged.name = "indexed_all_to_all_v_async";
    exchanged.call = [m = *this](const Tensor& own) {
      return indexed_all_to_all_v_async(own, m.indices(m.members.rank), m.table(),
                                        m.setting.use_fp32, m.setting.dim, m.members.argument)
          .wait();
    };
    Operation to_all = all_to_all(), transposed = transposing();
    to_all.name = "all_to_all_v_async";
    to_all.call = [m = *this](const Tensor& own) {
      const int rank = m.members.rank;
      return all_to_all_v_async(own, m.table()[rank], m.received_by(rank), m.setting.dim,
                                m.setting.dim, m.members.argument)
          .wait();
    };
    transposed.name = "all_to_all_v_async from one dim to another";
    transposed.call = [m = *this](const Tensor& own) {
      return all_to_all_v_async(own, m.extents, m.extents, m.setting.dim, (m.dim() + 1) % kDims,
                                m.members.argument)
          .wait();
    };
    return {gathered_by_all, gathered, scattered, reduced, exchanged, to_all, transposed};
  }
};

const char* name_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::kEven:
      return "even";
    case Pattern::kUneven:
      return "uneven";
    case Pattern::kSomeZero:
      return "some zero";
    case Pattern::kAllOnOne:
      return "all on one";
    case Pattern::kAllZero:
      return "all zero";
  }
  return "?";
}

}  // namespace

std::string to_string(const Setting& setting) {
  static constexpr const char* kLayouts[] = {"contiguous", "sliced", "transposed"};
  static constexpr const char* kForms[] = {"no sizes", "extents", "full shapes"};
  const std::string extents = setting.extents.empty()
                                  ? name_of(setting.pattern)
                                  : fmt::format("[{}]", fmt::join(setting.extents, ", "));
  return fmt::format("{}, dim {}, {}, {}, {}, use_fp32 {}, root {}", c10::toString(setting.type),
                     setting.dim, extents, kLayouts[static_cast<int>(setting.layout)],
                     kForms[static_cast<int>(setting.form)], setting.use_fp32, setting.root);
}

Counts extents_of(Pattern pattern, int size) {
  Counts extents(size, 0);
  for (int rank = 0; rank < size; ++rank) {
    switch (pattern) {
      case Pattern::kEven:
        extents[rank] = 3;
        break;
      case Pattern::kUneven:
        extents[rank] = 2 * rank + 1;
        break;
      case Pattern::kSomeZero:
        extents[rank] = rank % 2 == 0 ? 0 : rank + 3;
        break;
      case Pattern::kAllOnOne:
        extents[rank] = rank == size / 2 ? 6 : 0;
        break;
      case Pattern::kAllZero:
        break;
    }
  }
  return extents;
}

std::vector<Operation> operations(const Members& members, const Setting& setting) {
  const Maker maker{
      members, setting,
      setting.extents.empty() ? extents_of(setting.pattern, members.size) : setting.extents};
  std::vector<Operation> all = {maker.all_gather(), maker.gather(), maker.scatter(),
                                maker.reduce_scatter()};
  // The others always have sizes.
  const bool once = setting.form == SizesForm::kExtents;
  if (once) {
    for (const Operation& operation :
         {maker.indexed(false), maker.indexed(true), maker.all_to_all(), maker.transposing()}) {
      all.push_back(operation);
    }
    if (setting.type != at::kBool) all.push_back(maker.indexed_backward());
  }
  // Thin forms of the same calls: on a part of the matrix.
  if (setting.layout != MemoryLayout::kContiguous || (setting.dim != 0 && setting.dim != -1))
    return all;
  for (const auto& more : {maker.primitives(), maker.asynchronous()}) {
    for (const Operation& operation : more) {
      if (once || operation.name.find("all_to_all_v") == operation.name.npos) {
        all.push_back(operation);
      }
    }
  }
  return all;
}

Tensor laid_out(const Tensor& tensor, MemoryLayout layout) {
  if (layout == MemoryLayout::kContiguous || tensor.dim() == 0) return tensor.contiguous();
  if (layout == MemoryLayout::kTransposed) {
    return tensor.transpose(0, -1).contiguous().transpose(0, -1);
  }
  Counts around = tensor.sizes().vec();
  around.back() += 3;
  return at::zeros(around, tensor.options()).narrow(-1, 1, tensor.size(-1)).copy_(tensor);
}

}  // namespace meshrun
