#include "core/yaml/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <map>
#include <sstream>

#include "core/status.h"
#include "core/yaml/file_value.h"

namespace meshrun {
namespace {

// yaml-cpp takes a quoted text that ends with the file for a whole one.
bool IsClosed(const std::string& text, const YAML::Node& node) {
  const auto begin = static_cast<size_t>(node.Mark().pos);
  if (node.Tag() != "!" || begin >= text.size()) return true;
  const char quote = text[begin];
  if (quote != '"' && quote != '\'') return true;
  for (size_t at = begin + 1; at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (text[at] == quote) {
      if (quote == '"' || at + 1 >= text.size() || text[at + 1] != quote) return true;
      ++at;
    }
  }
  return false;
}

// What yaml-cpp accepts and nobody means: quotes that are never closed, keys that are set twice.
absl::Status CheckTree(std::string_view file, const std::string& text, const YAML::Node& node,
                       int depth) {
  constexpr int kDeepest = 32;
  if (depth > kDeepest) return WrongIn(file, node.Mark(), "nested too deeply");
  if (node.IsScalar() && !IsClosed(text, node)) {
    return WrongIn(file, node.Mark(), "this quote is never closed");
  }
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) {
      MESHRUN_RETURN_IF_ERROR(CheckTree(file, text, item, depth + 1));
    }
  }
  if (!node.IsMap()) return absl::OkStatus();
  std::map<std::string, int> lines;
  for (const auto& entry : node) {
    MESHRUN_RETURN_IF_ERROR(CheckTree(file, text, entry.first, depth + 1));
    MESHRUN_RETURN_IF_ERROR(CheckTree(file, text, entry.second, depth + 1));
    if (!entry.first.IsScalar()) continue;
    const auto [known, is_new] = lines.emplace(entry.first.Scalar(), entry.first.Mark().line + 1);
    if (!is_new) {
      return WrongIn(file, entry.first.Mark(),
                     fmt::format("{}: set before, at line {}: remove one of the two",
                                 entry.first.Scalar(), known->second));
    }
  }
  return absl::OkStatus();
}

// Keeps where the first node of a document begins.
class FirstNode : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { Keep(mark, true); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Keep(mark, false); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    Keep(mark, false);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Keep(mark, false);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    Keep(mark, false);
  }
  void OnMapEnd() override {}

  const YAML::Mark& mark() const { return mark_; }
  bool is_null() const { return is_null_; }

 private:
  void Keep(const YAML::Mark& mark, bool is_null) {
    if (kept_) return;
    kept_ = true;
    mark_ = mark;
    is_null_ = is_null;
  }

  bool kept_ = false;
  bool is_null_ = false;
  YAML::Mark mark_;
};

// Not by YAML::LoadAll: before yaml-cpp 0.9 it reads a comma outside of a list as an empty document
// and stays before it, so that documents without end fill the memory.
absl::Status CheckOneDocument(std::string_view name, const std::string& text,
                              std::string_view holds) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  FirstNode first, second;
  if (!parser.HandleNextDocument(first) || !parser.HandleNextDocument(second)) {
    return absl::OkStatus();
  }
  return WrongIn(name, second.mark(),
                 fmt::format("a second document begins here{}: {}",
                             second.is_null() ? ", or this is not YAML" : "", holds));
}

}  // namespace

absl::StatusOr<YAML::Node> LoadYaml(std::string_view name, const std::string& text,
                                    std::string_view holds) {
  const YAML::Node root = YAML::Load(text);
  MESHRUN_RETURN_IF_ERROR(CheckTree(name, text, root, 0));
  MESHRUN_RETURN_IF_ERROR(CheckOneDocument(name, text, holds));
  return root;
}

}  // namespace meshrun
