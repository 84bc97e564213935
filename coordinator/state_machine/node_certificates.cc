#include "coordinator/state_machine/node_certificates.h"

#include <fmt/format.h>

#include "core/certificates/expiry.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::seconds kBetweenLooks(10);
// Nodes that come to a stage so much later are told with the first.
constexpr std::chrono::hours kTogether(6);
// Names in an event, the first one's among them.
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

certificates::Validity ValidityOf(const v1::Node& node) {
  return {FromProto(node.certificate_begins_at()), FromProto(node.certificate_ends_at())};
}

void NodeCertificates::OnHello(Node& node, const v1::Caller& caller) {
  v1::Node& record = node.record;
  record.clear_certificate_begins_at();
  record.clear_certificate_ends_at();
  record.clear_session_ends_at();
  if (caller.has_certificate_ends_at()) {
    *record.mutable_certificate_begins_at() = caller.certificate_begins_at();
    *record.mutable_certificate_ends_at() = caller.certificate_ends_at();
    *record.mutable_session_ends_at() = caller.session_ends_at();
  }
  const WallNanos end = ValidityOf(record).not_after;
  if (node.told_expiry.not_after != end) node.told_expiry = {.not_after = end};
}

std::map<certificates::Expiry, std::vector<const Node*>> NodeCertificates::TakeDue(WallNanos wall) {
  std::map<certificates::Expiry, std::vector<const Node*>> due;
  for (const auto& [id, known] : nodes_.all()) {
    if (!known.record.has_certificate_ends_at() || known.session_id == 0) continue;
    const certificates::Validity validity = ValidityOf(known.record);
    // What has not ended is not told as if it had.
    if (wall != context_.wall && wall >= validity.not_after) continue;
    Node& node = *nodes_.Find(id);
    const certificates::Expiry before = node.told_expiry.stage;
    if (node.told_expiry.Advance(wall, validity)) due[node.told_expiry.stage].push_back(&node);
    if (node.told_expiry.stage != before) nodes_.Changed(node);
  }
  return due;
}

void NodeCertificates::Tell() {
  if (context_.now < next_look_) return;
  next_look_ = context_.now + kBetweenLooks;
  const auto due = TakeDue(context_.wall);
  if (due.empty()) return;
  auto soon = TakeDue(context_.wall + kTogether);
  for (auto [stage, nodes] : due) {
    if (stage != certificates::Expiry::kOver) {
      nodes.insert(nodes.end(), soon[stage].begin(), soon[stage].end());
    }
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
