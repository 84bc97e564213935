#include "parallel/checkpoint/kept_agreement.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "parallel/base/digest.h"
#include "parallel/checkpoint/agreement.h"

namespace meshrun::detail {
namespace {

// Digests by name. A name that one side lacks differs too.
using KeptDigests = std::map<std::string, uint64_t>;

std::string first_different(const KeptDigests& some, const KeptDigests& others) {
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

std::string difference_of_kept(c10d::ProcessGroup& group, c10::Device device,
                               const std::map<std::string, std::string>* own) {
  std::string text;
  if (own != nullptr) {
    nlohmann::json digests = nlohmann::json::object();
    for (const auto& [name, bytes] : *own) digests[name] = digest_of(bytes);
    text = digests.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  const std::vector<std::string> texts = gather_texts(group, device, text);
  size_t first = texts.size();
  KeptDigests of_first;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const auto digests = nlohmann::json::parse(texts[rank]).get<KeptDigests>();
    if (first == texts.size()) {
      first = rank;
      of_first = digests;
    } else if (const std::string name = first_different(of_first, digests); !name.empty()) {
      return "the kept value \"" + name + "\" differs between ranks " + std::to_string(first) +
             " and " + std::to_string(rank);
    }
  }
  return "kept values differ between ranks";
}

}  // namespace meshrun::detail
