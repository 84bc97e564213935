#include "coordinator/state_machine/node_certificates.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "core/certificates/expiry.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::seconds kBetweenLooks(10);
// With the first.
constexpr size_t kNamed = 3;

// "gpu2, gpu3 and 7 more nodes": all but the first.
std::string Others(const std::vector<const Node*>& nodes) {
  std::string out;
  const size_t named = nodes.size() - 1 <= kNamed ? nodes.size() : kNamed;
  for (size_t i = 1; i < named; ++i) {
    out += fmt::format("{}{}", i == 1 ? "" : ", ", nodes[i]->record.name());
  }
  if (named < nodes.size()) out += fmt::format(" and {}", Count(nodes.size() - named, "more node"));
  return out;
}

}  // namespace

void NodeCertificates::OnHello(Node& node, const v1::Caller& caller) {
  v1::Node& record = node.record;
  record.clear_certificate_ends_at();
  record.clear_session_ends_at();
  if (!caller.has_certificate_ends_at()) return;
  *record.mutable_certificate_ends_at() = caller.certificate_ends_at();
  *record.mutable_session_ends_at() = caller.session_ends_at();
}

void NodeCertificates::Tell() {
  if (context_.now < next_look_) return;
  next_look_ = context_.now + kBetweenLooks;
  std::map<certificates::Expiry, std::vector<const Node*>> due;
  for (const auto& [id, known] : nodes_.all()) {
    if (!known.record.has_certificate_ends_at() || known.lost()) continue;
    Node& node = *nodes_.Find(id);
    const WallNanos end = FromProto(node.record.certificate_ends_at());
    if (!node.told_expiry.Advance(context_.wall, end)) continue;
    due[node.told_expiry.stage].push_back(&node);
    nodes_.Changed(node);
  }
  for (const auto& [stage, nodes] : due) {
    const Node& first = *nodes.front();
    const bool over = stage == certificates::Expiry::kOver;
    const auto end = [this](const google::protobuf::Timestamp& at) {
      return certificates::DescribeEnd(context_.wall, FromProto(at));
    };
    std::string text = fmt::format("the certificate of {} {}", first.record.name(),
                                   end(first.record.certificate_ends_at()));
    if (over) text += fmt::format(", its open session {}", end(first.record.session_ends_at()));
    if (nodes.size() > 1) {
      text += fmt::format(", and those of {} {} too", Others(nodes), over ? "have ended" : "end");
    }
    context_.Record("CertificateEnding", "", nodes.size() == 1 ? first.id() : "",
                    text + ": renew with 'meshrun ca renew'");
  }
}

}  // namespace meshrun::coordinator
