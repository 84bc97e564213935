#include "parallel/shard/dispatch/operator_table.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/plain_targets.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, HandlerLevel>, OperatorRow> rows;
  // They unregister what they hold when they end: never.
  std::vector<std::unique_ptr<torch::Library>> libraries;
};

Table& table() {
  static auto* table = new Table;
  return *table;
}

std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t colons = name.find("::");
  TORCH_CHECK_VALUE(colons != std::string::npos, "'", name,
                    "' is not an operator's name: write it as aten::add.Tensor");
  return {name.substr(0, colons), name.substr(colons + 2)};
}

// Overloads and forms in place share a name: add for aten::add_.Tensor.
std::string shown_name(const std::string& name) {
  std::string shown = name.starts_with("aten::") ? name.substr(6) : name;
  shown = shown.substr(0, shown.find('.'));
  if (shown.size() > 1 && shown.ends_with("_")) shown.pop_back();
  return shown;
}

}  // namespace

void register_operator(OperatorRow row, torch::CppFunction kernel) {
  const auto [space, name] = split_name(row.name);
  operator_named(row.name);
  if (row.level == HandlerLevel::kAboveAutograd) drop_plain_target_kernel(row.name);
  auto library = std::make_unique<torch::Library>(
      torch::Library::IMPL, space,
      row.level == HandlerLevel::kBelowAutograd ? kOperatorKey : kFunctionKey, __FILE__, __LINE__);
  library->impl(name.c_str(), std::move(kernel));
  const std::lock_guard lock(table().mutex);
  table().libraries.push_back(std::move(library));
  const auto key = std::make_tuple(row.family, row.name, row.level);
  table().rows.insert_or_assign(key, std::move(row));
}

std::vector<std::string> overloads_of(const std::string& op) {
  static const auto* by_name = [] {
    auto* names = new std::multimap<std::string, std::string>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      names->emplace(name.name, c10::toString(name));
    }
    return names;
  }();
  std::vector<std::string> overloads;
  for (const std::string& form : {op, op + "_"}) {
    const auto [begin, end] = by_name->equal_range(form);
    for (auto found = begin; found != end; ++found) {
      const auto handle = c10::Dispatcher::singleton().findSchema(
          {found->first, found->second.size() > form.size() ? found->second.substr(form.size() + 1)
                                                            : std::string()});
      if (!handle.has_value() ||
          handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
        continue;
      }
      const auto& arguments = handle->schema().arguments();
      const bool takes_tensor = std::any_of(arguments.begin(), arguments.end(), [](const auto& a) {
        return a.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
      });
      if (takes_tensor) overloads.push_back(found->second);
    }
  }
  TORCH_CHECK_VALUE(!overloads.empty(), "LibTorch has no operator '", op, "' on tensors");
  return overloads;
}

std::vector<OperatorRow> registered_operators() {
  const std::lock_guard lock(table().mutex);
  std::vector<OperatorRow> rows;
  for (const auto& [key, row] : table().rows) rows.push_back(row);
  return rows;
}

std::string operators_as_markdown() {
  struct Group {
    std::vector<std::string> names;
    Movement movement;
  };
  std::map<std::string, std::vector<Group>> families;
  for (const OperatorRow& row : registered_operators()) {
    std::vector<Group>& groups = families[row.family];
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.movement.placements == row.movement.placements &&
             group.movement.forward == row.movement.forward &&
             group.movement.backward == row.movement.backward;
    });
    Group& group = same == groups.end() ? groups.emplace_back(Group{{}, row.movement}) : *same;
    const std::string shown = "`" + shown_name(row.name) + "`";
    if (std::find(group.names.begin(), group.names.end(), shown) == group.names.end()) {
      group.names.push_back(shown);
    }
  }
  std::string text;
  for (const auto& [family, groups] : families) {
    text += fmt::format(
        "### {}\n\n| operators | takes without moving | moves forward | moves backward |\n"
        "|---|---|---|---|\n",
        family);
    for (const Group& group : groups) {
      text +=
          fmt::format("| {} | {} | {} | {} |\n", fmt::join(group.names, ", "),
                      group.movement.placements, group.movement.forward, group.movement.backward);
    }
    text += "\n";
  }
  return text;
}

}  // namespace meshrun
