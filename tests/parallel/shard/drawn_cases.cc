#include "tests/parallel/shard/drawn_cases.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "ATen/ATen.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using Families = std::map<std::string, std::function<OperatorCase(Draw&)>>;

Families& families() {
  static auto* families = new Families;
  return *families;
}

int64_t number_of(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

// Averages in place of sums.
ShardLayout averaged(const ShardLayout& layout) {
  Placements placements = layout.placements();
  for (Placement& placement : placements) {
    if (placement.is_partial()) placement = Partial(PartialOp::kAvg);
  }
  return layout.with_placements(placements);
}

// Memory in another order on every second rank: what a rank's own strides decide must not decide
// which collectives it runs.
at::Tensor in_own_order(const at::Tensor& part, int rank) {
  if (part.dim() < 2 || rank % 2 == 0) return part;
  return part.transpose(0, -1).clone(at::MemoryFormat::Contiguous).transpose(0, -1);
}

// A leaf, in one of the ways in which programs make them.
at::Tensor drawn_leaf(Draw& draw, const at::Tensor& part, const SpecPtr& spec, std::string* said) {
  const auto called = [&](const char* way) { *said += fmt::format(" ({})", way); };
  switch (draw.integer(0, 5)) {
    case 0: {
      called("from_local, requires_grad_");
      return at::Tensor(meshrun::from_local(part, spec)).requires_grad_();
    }
    case 1: {
      called("detach, set_requires_grad");
      const at::Tensor leaf = ShardTensor(part, spec).detach();
      leaf.set_requires_grad(true);
      return leaf;
    }
    case 2: {
      called("clone, requires_grad_");
      return at::clone(ShardTensor(part, spec)).requires_grad_();
    }
    case 3: {
      called("set_data");
      // Used before, with another layout.
      at::Tensor leaf = ShardTensor(at::zeros(spec->global_shape(), part.options()),
                                    replicated_spec(spec->mesh(), spec->global_shape()), true);
      [[maybe_unused]] const at::Tensor used = leaf * 2;
      leaf.set_data(ShardTensor(part, spec));
      return leaf;
    }
    default:
      return ShardTensor(part, spec, true);
  }
}

bool contains(const std::vector<size_t>& indices, size_t index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

// What the handler of SIGABRT says: a GPU's error in a destructor and NCCL's watchdog end a rank
// without a word of where it was.
std::array<char, 4096> present_case;
volatile std::sig_atomic_t present_size = 0;

void set_present_case(const std::string& words) {
  const size_t size = std::min(words.size(), present_case.size() - 1);
  present_size = 0;
  std::copy_n(words.begin(), size, present_case.begin());
  present_case[size] = '\n';
  present_size = static_cast<std::sig_atomic_t>(size + 1);
}

void say_present_case(int) {
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, present_case.data(), static_cast<size_t>(present_size));
}

// Family and draw.
std::string& present_draw() {
  static auto* draw = new std::string;
  return *draw;
}

// Number of failures of this rank, which runs no test of its own.
int failures() { return testing::UnitTest::GetInstance()->ad_hoc_test_result().total_part_count(); }

}  // namespace

bool register_operator_cases(const std::string& family, std::function<OperatorCase(Draw&)> draw) {
  families()[family] = std::move(draw);
  return true;
}

PlacedCase::PlacedCase(const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh,
                       c10::Device device)
    : said(drawn.name) {
  bool any_sharded = false;
  for (size_t i = 0; i < drawn.inputs.size(); ++i) {
    const at::Tensor input = drawn.inputs[i].to(device);
    const bool wants = drawn.differentiable && at::isFloatingType(input.scalar_type());
    const bool is_plain = contains(drawn.plain, i) && (any_sharded || i + 1 < drawn.inputs.size());
    whole.push_back(input.detach().clone().set_requires_grad(wants && !is_plain));
    if (is_plain) {
      sharded.push_back(input.detach().clone());
      said += ", plain";
      continue;
    }
    any_sharded = true;
    ShardLayout layout = draw_layout(draw, mesh->shape(), input.sizes().vec(),
                                     wants && !drawn.no_partial && input.dim() > 0,
                                     !contains(drawn.never_sharded, i));
    if (layout.has_partial() && draw.chance(0.3)) layout = averaged(layout);
    const SpecPtr spec = make_spec(mesh, std::move(layout));
    any_partial |= spec->has_partial();
    said += fmt::format(", {}", spec->to_string());
    at::Tensor part = part_of(input, *spec);
    if (draw.chance(0.3)) part = in_own_order(part, mesh->group()->getRank());
    sharded.push_back(wants ? drawn_leaf(draw, part, spec, &said) : ShardTensor(part, spec));
  }
  if (std::getenv("MESHRUN_SHARD_VERBOSE") != nullptr) fmt::print(stderr, "{}\n", said);
  set_present_case(fmt::format("aborted in {}: {}", present_draw(), said));
}

void for_each_drawn_case(int64_t draws, const CaseCheck& check) {
  const JoinedWorld world;
  std::signal(SIGABRT, say_present_case);
  std::vector<ShardMesh::Ptr> meshes = {ShardMesh::of(world.manager.initialize_mesh(
      world.size == 4 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{1, world.size},
      {"dp", "domain"}))};
  MeshLayout flat{{"all"}, {world.size}, std::vector<int>(static_cast<size_t>(world.size))};
  std::iota(flat.ranks.begin(), flat.ranks.end(), 0);
  meshes.push_back(ShardMesh::of(DeviceMesh(flat, world.rank)));

  const char* only = std::getenv("MESHRUN_SHARD_FAMILY");
  const auto seed = static_cast<uint64_t>(number_of("MESHRUN_TEST_SEED", 1));
  draws = number_of("MESHRUN_SHARD_CASES", draws);
  for (const auto& [family, draw_case] : families()) {
    if (only != nullptr && family != only) continue;
    for (int64_t i = 0; i < draws; ++i) {
      const uint64_t own_seed = seed * 1000003 + static_cast<uint64_t>(i);
      Draw draw(own_seed);
      present_draw() = fmt::format("family {}, draw {}", family, i);
      SCOPED_TRACE(present_draw());
      const int failures_before = failures();
      const OperatorCase drawn = draw_case(draw);
      set_present_case(fmt::format("aborted in {}: {}", present_draw(), drawn.name));
      bool has_device = true;
      try {
        check(drawn, draw, meshes[static_cast<size_t>(i % 2)], world.manager.device());
      } catch (const std::exception& error) {
        ADD_FAILURE() << drawn.name << ": " << std::string(error.what()).substr(0, 1000);
        has_device = dynamic_cast<const c10::AcceleratorError*>(&error) == nullptr;
      }
      if (failures() == failures_before) continue;
      // Ranks may have parted: what follows would wait for them.
      if (world.size > 1 || !has_device) return;
      break;
    }
  }
}

void run_drawn_cases(const std::string& function, std::vector<Variables> ranks, RankStart start) {
  for (Variables& variables : ranks) {
    for (const char* name : {"MESHRUN_SHARD_CASES", "MESHRUN_SHARD_FAMILY", "MESHRUN_TEST_SEED",
                             "MESHRUN_TEST_WHOLE", "MESHRUN_SHARD_VERBOSE"}) {
      if (const char* value = std::getenv(name)) variables[name] = value;
    }
    variables["MESHRUN_SHARD_STRICT"] = "1";
  }
  expect_success(run_ranks(function, ranks, std::chrono::minutes(90), start));
}

at::Tensor whole_of(const at::Tensor& tensor) {
  return is_shard_tensor(tensor) ? ShardTensor(tensor).full_tensor().detach() : tensor.detach();
}

std::string difference(const at::Tensor& is, const at::Tensor& should, Equality equality) {
  if (is.sizes() != should.sizes() || is.scalar_type() != should.scalar_type()) {
    return fmt::format("{} of {} dimensions and {} elements, not {} of {} and {}",
                       c10::toString(is.scalar_type()), is.dim(), is.numel(),
                       c10::toString(should.scalar_type()), should.dim(), should.numel());
  }
  if (is.numel() == 0 || at::equal(is, should)) return "";
  if (is.is_complex()) {
    return difference(at::view_as_real(is.resolve_conj()), at::view_as_real(should.resolve_conj()),
                      equality);
  }
  const bool exact = equality == Equality::kBits || !at::isFloatingType(is.scalar_type());
  const at::Tensor a = is.to(at::kDouble);
  const at::Tensor b = should.to(at::kDouble);
  const at::Tensor finite = a.isfinite().logical_and(b.isfinite());
  // Without its own comparison a NaN would be a zero.
  if (!at::equal(a.isnan(), b.isnan()) || !at::equal(at::nan_to_num(a.masked_fill(finite, 0)),
                                                     at::nan_to_num(b.masked_fill(finite, 0)))) {
    return "other infinities or NaNs";
  }
  const at::Tensor apart = (a - b).masked_fill(finite.logical_not(), 0);
  if (equality == Equality::kUlps && at::isFloatingType(is.scalar_type())) {
    const at::Tensor size = should.masked_fill(finite.logical_not(), 0).abs();
    const at::Tensor above = at::full_like(size, std::numeric_limits<double>::infinity());
    const at::Tensor unit = (at::nextafter(size, above) - size).to(at::kDouble);
    const double most = (apart.abs() / unit).max().item<double>();
    return most <= 4 ? "" : fmt::format("{} units in the last place apart", most);
  }
  const double relative =
      apart.norm().item<double>() /
      std::max(b.masked_fill(finite.logical_not(), 0).norm().item<double>(), 1e-3);
  const double tolerance = exact                             ? 0
                           : is.scalar_type() == at::kDouble ? 1e-10
                           : is.scalar_type() == at::kFloat  ? 1e-5
                                                             : 2e-2;
  return relative <= tolerance ? "" : fmt::format("relative L2 {}", relative);
}

}  // namespace meshrun
