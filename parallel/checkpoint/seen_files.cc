#include "parallel/checkpoint/seen_files.h"

#include <nlohmann/json.hpp>
#include <set>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/told_json.h"

namespace meshrun::detail {

using nlohmann::json;

SeenFiles::SeenFiles(c10d::ProcessGroup& group, c10::Device device, const CheckpointReader* reader)
    : group_(group), device_(device), reader_(reader) {
  json own;
  if (reader != nullptr) own = {{"files", reader->files()}, {"whole", reader->has_whole_files()}};
  for (const std::string& text : gather_texts(group, device, own.dump())) {
    const json told = json::parse(text);
    auto& files = by_rank_.emplace_back();
    is_whole_everywhere_ = is_whole_everywhere_ && !told.is_null() && told.at("whole").get<bool>();
    if (!told.is_null()) files = told.at("files").get<std::map<std::string, int64_t>>();
  }
}

std::optional<int> SeenFiles::root() const {
  for (size_t rank = 0; rank < by_rank_.size(); ++rank) {
    if (by_rank_[rank]) return static_cast<int>(rank);
  }
  return std::nullopt;
}

void SeenFiles::verify() const {
  if (reader_ == nullptr) return;
  const auto own = static_cast<size_t>(group_.getRank());
  for (const auto& [name, identity] : *by_rank_[own]) {
    size_t before = 0, all = 0;
    for (size_t rank = 0; rank < by_rank_.size(); ++rank) {
      if (!by_rank_[rank]) continue;
      const auto theirs = by_rank_[rank]->find(name);
      if (theirs == by_rank_[rank]->end() || theirs->second != identity) continue;
      if (rank < own) ++before;
      ++all;
    }
    reader_->verify(name, before, all);
  }
}

OutlinesByFile SeenFiles::outlines() const {
  OutlinesByFile outlines;
  if (reader_ != nullptr) {
    for (const auto& [name, identity] : reader_->files()) outlines[name] = reader_->outline(name);
  }
  if (!root()) return outlines;
  // The first rank that sees a file tells of it, unless that is the root.
  std::set<std::string> known;
  for (size_t rank = static_cast<size_t>(*root()); rank < by_rank_.size(); ++rank) {
    if (!by_rank_[rank]) continue;
    std::vector<std::string> news;
    for (const auto& [name, identity] : *by_rank_[rank]) {
      if (known.insert(name).second) news.push_back(name);
    }
    const auto root_of_news = static_cast<int>(rank);
    if (root_of_news == *root() || news.empty()) continue;
    json told = json::object();
    for (const std::string& name : news) {
      if (group_.getRank() != root_of_news) break;
      told[name] = outlines.at(name);
    }
    told = json::parse(broadcast_text(group_, device_, told.dump(), root_of_news));
    for (const auto& [name, file] : told.items()) outlines[name] = file.get<Outline>();
  }
  return outlines;
}

}  // namespace meshrun::detail
