#include "parallel/checkpoint/kept_agreement.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "parallel/base/digest.h"
#include "parallel/checkpoint/agreement.h"

namespace meshrun::detail {
namespace {

// A name that one side lacks differs too.
std::string first_different(const Digests& some, const Digests& others) {
  for (const auto& [name, digest] : some) {
    const auto found = others.find(name);
    if (found == others.end() || found->second != digest) return name;
  }
  for (const auto& [name, digest] : others) {
    if (!some.contains(name)) return name;
  }
  return "";
}

}  // namespace

Digests digests_of_kept(const std::map<std::string, std::string>& saved) {
  Digests digests;
  for (const auto& [name, bytes] : saved) {
    digests["the kept value \"" + name + "\""] = meshrun::digest_of(bytes);
  }
  return digests;
}

int64_t digest_of_all(const Digests& digests) {
  Digest all;
  for (const auto& [name, digest] : digests) {
    all.add(static_cast<int64_t>(meshrun::digest_of(name))).add(static_cast<int64_t>(digest));
  }
  return static_cast<int64_t>(all.value());
}

std::string difference_between_ranks(c10d::ProcessGroup& group, c10::Device device,
                                     const Digests* own) {
  std::string text;
  if (own != nullptr) {
    text = nlohmann::json(*own).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  const std::vector<std::string> texts = gather_texts(group, device, text);
  size_t first = texts.size();
  Digests of_first;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const auto digests = nlohmann::json::parse(texts[rank]).get<Digests>();
    if (first == texts.size()) {
      first = rank;
      of_first = digests;
    } else if (const std::string name = first_different(of_first, digests); !name.empty()) {
      return name + " differs between ranks " + std::to_string(first) + " and " +
             std::to_string(rank);
    }
  }
  return "values differ between ranks";
}

}  // namespace meshrun::detail
