// The ends of the nodes' certificates: shown with each node, and told as events 30 days, 7 days and
// 1 day before, and when they have ended. A renewed certificate comes with the next Hello.
#pragma once

#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/nodes.h"

namespace meshrun::coordinator {

class NodeCertificates {
 public:
  NodeCertificates(Context& context, NodeTable& nodes) : context_(context), nodes_(nodes) {}

  // The node has said Hello with the certificate of `caller`.
  void OnHello(Node& node, const v1::Caller& caller);
  // Looks once in a while. Nodes that have come to one stage together are one event: a certificate
  // of all nodes, or those of one afternoon.
  void Tell();

 private:
  Context& context_;
  NodeTable& nodes_;
  SteadyNanos next_look_{0};
};

}  // namespace meshrun::coordinator
