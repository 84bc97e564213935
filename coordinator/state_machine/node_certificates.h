// The ends of the nodes' certificates: shown with each node, and told as events 30 days, 7 days and
// 1 day before, and when they have ended. A renewed certificate comes with the next Hello.
#pragma once

#include <map>
#include <vector>

#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/nodes.h"

namespace meshrun::coordinator {

// That of the node's session; nothing without TLS.
certificates::Validity ValidityOf(const v1::Node& node);

class NodeCertificates {
 public:
  NodeCertificates(Context& context, NodeTable& nodes) : context_(context), nodes_(nodes) {}

  // The node has said Hello with the certificate of `caller`, and is written.
  void OnHello(Node& node, const v1::Caller& caller);
  // Looks once in a while, at nodes that have a session. Nodes that come to one stage within some
  // hours are one event: a certificate of all nodes, or those of one afternoon.
  void Tell();

 private:
  // Those that come to a stage by then, which counts as told.
  std::map<certificates::Expiry, std::vector<const Node*>> TakeDue(WallNanos wall);

  Context& context_;
  NodeTable& nodes_;
  SteadyNanos next_look_{0};
};

}  // namespace meshrun::coordinator
