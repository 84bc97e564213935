// The table of operators by four routes: plain and under autocast, each by the operator's rule and
// by the fallback that gathers. The drawn cases go all four ways; each result is LibTorch's on the
// whole tensors. The fallback takes the place of the rules of operators that write nothing, share
// no memory and draw no random numbers; the others keep theirs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/enum_tag.h"
#include "fmt/format.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/shard/dispatch/fallback.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/drawn_cases.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

constexpr int64_t kDraws = 20;
constexpr const char* kRoutes[] = {"plain, rule", "plain, fallback", "autocast, rule",
                                   "autocast, fallback"};

// Counts of the cases of one operator on one route.
struct Cell {
  int64_t equal = 0;
  int64_t refused = 0;  // an error
  int64_t differ = 0;
  std::string first;  // words of what was not equal
};
using Column = std::map<std::string, Cell>;

class Autocast {
 public:
  explicit Autocast(c10::DeviceType device) : device_(device) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
};

// Steps of optimizers multiply roundings to bfloat16.
bool is_left_out(const std::string& name) {
  for (const char* word : {"SGD", "Adam", "Adagrad", "foreach", "autocast"}) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

// Empty: within a few roundings to bfloat16, with the same dtype.
std::string difference_in_bfloat16(const at::Tensor& is, const at::Tensor& should) {
  if (is.sizes() != should.sizes() || is.scalar_type() != should.scalar_type()) {
    return fmt::format("{} of {} elements, not {} of {}", c10::toString(is.scalar_type()),
                       is.numel(), c10::toString(should.scalar_type()), should.numel());
  }
  if (is.numel() == 0) return "";
  const at::Tensor a = at::nan_to_num(at::view_as_real(is.to(at::kComplexDouble)));
  const at::Tensor b = at::nan_to_num(at::view_as_real(should.to(at::kComplexDouble)));
  // Infinities are the largest numbers by now.
  const at::Tensor largest = at::maximum(a.abs(), b.abs()) > 1e300;
  const double apart = (a - b).masked_fill(largest, 0).norm().item<double>();
  const double size = b.masked_fill(largest, 0).norm().item<double>();
  return apart <= 4e-2 * std::max(size, 1.0) ? "" : fmt::format("relative L2 {}", apart / size);
}

void compare(const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh, c10::Device device,
             bool autocast, Column& column) {
  if (autocast && is_left_out(drawn.name)) return;
  OperatorCase given = drawn;
  for (at::Tensor& input : given.inputs) {
    if (autocast && input.scalar_type() == at::kDouble) input = input.to(at::kFloat);
  }
  const PlacedCase placed(given, draw, mesh, device);
  const auto call = [&](const Tensors& inputs) {
    std::optional<Autocast> on;
    if (autocast) on.emplace(device.type());
    return drawn.call(inputs);
  };
  Tensors expected;
  try {
    expected = call(placed.whole);
  } catch (const c10::Error&) {
    return;  // what LibTorch itself refuses
  }
  Cell& cell = column[drawn.name];
  std::string wrong;
  int64_t* count = &cell.differ;
  try {
    const Tensors got = call(placed.sharded);
    if (got.size() != expected.size()) wrong = fmt::format("{} results", got.size());
    for (size_t i = 0; i < got.size() && wrong.empty(); ++i) {
      const at::Tensor is = whole_of(got[i]);
      const at::Tensor should = expected[i].detach();
      wrong = autocast ? difference_in_bfloat16(is, should)
                       : difference(is, should, Equality::kRounding);
    }
  } catch (const std::exception& error) {
    wrong = std::string(error.what()).substr(0, 300);
    count = &cell.refused;
  }
  if (wrong.empty()) {
    ++cell.equal;
    return;
  }
  ++*count;
  if (!cell.first.empty()) return;
  std::replace(wrong.begin(), wrong.end(), '\n', ' ');
  cell.first = placed.said + ": " + wrong;
}

void gather_always(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_replicated(op, stack, Announce::kQuietly);
}

// In this process, for good.
void replace_rules() {
  for (const OperatorRow& row : registered_operators()) {
    if (row.level != HandlerLevel::kBelowAutograd) continue;
    const c10::OperatorHandle op = operator_named(row.name);
    const OperatorSignature signature(op.schema());
    const bool keeps_its_rule = signature.is_view || signature.num_written > 0 ||
                                op.hasTag(at::Tag::nondeterministic_seeded) ||
                                row.name == "aten::clone" || row.name == "aten::_to_copy";
    if (keeps_its_rule) continue;
    register_operator({"gathered", row.name, HandlerLevel::kBelowAutograd, {}},
                      torch::CppFunction::makeFromBoxedFunction<&gather_always>());
  }
}

// Rank 0 says what it found, by lines of "route|operator|equal|refused|differ|first".
void draw_by(size_t plain_route, size_t autocast_route) {
  Column plain;
  Column autocast;
  bool speaks = false;
  for_each_drawn_case(kDraws, [&](const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh,
                                  c10::Device device) {
    speaks = DistributedManager::get().rank() == 0;
    compare(drawn, draw, mesh, device, /*autocast=*/false, plain);
    compare(drawn, draw, mesh, device, /*autocast=*/true, autocast);
  });
  if (!speaks) return;
  for (const auto& [route, column] :
       {std::pair(plain_route, &plain), std::pair(autocast_route, &autocast)}) {
    for (const auto& [name, cell] : *column) {
      std::cout << "@" << route << "|" << name << "|" << cell.equal << "|" << cell.refused << "|"
                << cell.differ << "|" << cell.first << std::endl;
    }
  }
}

const bool kRegistered = register_rank_function("routes by rules", [] { draw_by(0, 2); }) &&
                         register_rank_function("routes by the fallback", [] {
                           replace_rules();
                           const ShardTensorPatchesGuard no_function_handlers(false);
                           draw_by(1, 3);
                         });

// By operator, the cells of the four routes.
using Routes = std::map<std::string, std::map<size_t, Cell>>;

void add_routes(const std::string& function, const Variables& variables, Routes& routes) {
  std::vector<Variables> ranks = env_ranks(2);
  for (Variables& rank : ranks) rank.insert(variables.begin(), variables.end());
  const std::vector<RankResult> results = run_ranks(function, ranks);
  expect_success(results);
  std::istringstream lines(results[0].output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("@")) continue;
    std::istringstream fields(line.substr(1));
    std::string route, name, equal, refused, differ;
    Cell cell;
    for (std::string* field : {&route, &name, &equal, &refused, &differ}) {
      std::getline(fields, *field, '|');
    }
    std::getline(fields, cell.first);
    cell.equal = std::stoll(equal);
    cell.refused = std::stoll(refused);
    cell.differ = std::stoll(differ);
    routes[name][std::stoul(route)] = cell;
  }
}

TEST(OperatorRoutesTest, PlainAndUnderAutocastByRuleAndByFallbackResultsAreLibTorchs) {
  Routes routes;
  add_routes("routes by rules", {{"MESHRUN_SHARD_STRICT", "1"}}, routes);
  add_routes("routes by the fallback", {}, routes);
  EXPECT_GT(routes.size(), 50U);
  std::cout << "draws that are equal, by operator\n";
  std::map<size_t, int64_t> equal;
  std::map<size_t, int64_t> refused;
  for (const auto& [name, cells] : routes) {
    std::string row = fmt::format("  {:44}", name);
    for (size_t route = 0; route < std::size(kRoutes); ++route) {
      const auto found = cells.find(route);
      const Cell cell = found == cells.end() ? Cell() : found->second;
      row += fmt::format(" {:>3}{:<12}", cell.equal,
                         cell.refused > 0 ? fmt::format(" ({} refused)", cell.refused) : "");
      equal[route] += cell.equal;
      refused[route] += cell.refused;
      EXPECT_EQ(cell.differ, 0) << name << ", " << kRoutes[route] << ": " << cell.first;
      // What a rule is missing for is refused where the fallback is forbidden.
      if (route % 2 == 0) {
        EXPECT_EQ(cell.refused, 0) << name << ", " << kRoutes[route] << ": " << cell.first;
      }
    }
    std::cout << row << "\n";
  }
  for (size_t route = 0; route < std::size(kRoutes); ++route) {
    EXPECT_GT(equal[route], 100) << kRoutes[route];
    std::cout << "route " << kRoutes[route] << ": " << equal[route] << " draws of " << routes.size()
              << " operators are equal, " << refused[route] << " refused\n";
  }
}

}  // namespace
}  // namespace meshrun
