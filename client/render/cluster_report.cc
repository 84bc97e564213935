#include "client/render/cluster_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "client/render/report.h"
#include "client/render/style.h"
#include "client/render/table.h"
#include "core/certificates/expiry.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

using std::chrono::nanoseconds;

std::string LabelsText(const v1::Node& node) {
  std::string out;
  const std::map<std::string, std::string> sorted(node.labels().begin(), node.labels().end());
  for (const auto& [name, value] : sorted) {
    out += fmt::format("{}{}{}{}", out.empty() ? "" : ",", name, value.empty() ? "" : "=", value);
  }
  return out;
}

// Why nothing new is placed there: the reason of the drain, or its own, and its problems.
std::string ReasonText(const v1::Node& node) {
  const std::string& drain = node.drained() ? node.drained_because() : node.drain_reason();
  const std::string problems = fmt::format("{}", fmt::join(node.problems(), "; "));
  return drain.empty() || problems.empty() ? drain + problems : drain + "; " + problems;
}

certificates::Validity ValidityOf(const v1::Node& node) {
  return {FromProto(node.certificate_begins_at()), FromProto(node.certificate_ends_at())};
}

// "in 6d", "ended 2h ago"; empty without TLS.
std::string CertificateText(const v1::Node& node, nanoseconds now) {
  if (!node.has_certificate_ends_at()) return "";
  const nanoseconds end = FromProto(node.certificate_ends_at());
  return end > now ? "in " + Age(end - now) : "ended " + Ago(now, end);
}

// "a leads at head1:7480, standbys: b at head2:7480, c at head3:7480; state in etcd".
std::string CoordinatorsText(const v1::DescribeClusterResponse& cluster) {
  std::string leader, standbys;
  for (const v1::Coordinator& one : cluster.coordinators()) {
    if (one.leads()) {
      leader = fmt::format("{} leads at {}", one.name(), one.address());
    } else {
      standbys +=
          fmt::format("{}{} at {}", standbys.empty() ? "" : ", ", one.name(), one.address());
    }
  }
  return fmt::format("{}{}{}; state in {}", leader, leader.empty() ? "standbys: " : ", standbys: ",
                     standbys.empty() ? "none" : standbys, cluster.state_engine());
}

}  // namespace

bool CertificateIsEnding(const v1::Node& node, nanoseconds now) {
  return node.has_certificate_ends_at() &&
         certificates::ExpiryAt(now, ValidityOf(node)) != certificates::Expiry::kFar;
}

std::string NodeStateText(const v1::Node& node) {
  const bool present = node.state() == v1::NODE_STATE_HEALTHY;
  if (!node.drained() || !present) return StateName(node.state());
  if (node.quarantined()) return "QUARANTINED";
  return node.slots_used() > 0 || node.gpus_used_size() > 0 ? "DRAINING" : "DRAINED";
}

std::string NodeTable(std::vector<v1::Node> nodes, nanoseconds now, int width) {
  std::sort(nodes.begin(), nodes.end(), [](const v1::Node& a, const v1::Node& b) {
    return a.name() != b.name() ? NaturalLess(a.name(), b.name()) : a.node_id() < b.node_id();
  });
  const bool alarm = std::any_of(nodes.begin(), nodes.end(), [now](const v1::Node& node) {
    return CertificateIsEnding(node, now);
  });
  Table table({"NODE", "STATE", ">SLOTS", ">CORES", ">GPUS", ">MEMORY", "~ADDRESS", "~SINCE",
               "~LAST SEEN", "~VERSION", alarm ? "CERTIFICATE" : "~CERTIFICATE", "LABELS",
               "REASON"});
  for (const v1::Node& node : nodes) {
    const v1::Resources& r = node.resources();
    table.Add({node.name(), NodeStateText(node), fmt::format("{}/{}", node.slots_used(), r.slots()),
               fmt::format("{}", r.cores()),
               r.gpus().empty() ? "" : fmt::format("{}/{}", node.gpus_used_size(), r.gpus_size()),
               FormatBytes(r.memory_bytes()), node.addresses().empty() ? "" : node.addresses(0),
               Ago(now, FromProto(node.registered_at())), Ago(now, FromProto(node.last_seen_at())),
               node.version(), CertificateText(node, now), LabelsText(node),
               OneLine(ReasonText(node), kNoteWidth)});
  }
  return table.Render(0, width);
}

std::string DescribeNode(const v1::Node& node, nanoseconds now) {
  const v1::Resources& r = node.resources();
  std::string out = fmt::format("{}  {}\n", node.name(), NodeStateText(node));
  const auto field = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) out += fmt::format("  {:<13} {}\n", name, value);
  };
  field("id", node.node_id());
  field("addresses", fmt::format("{}", fmt::join(node.addresses(), ", ")));
  field("labels", LabelsText(node));
  if (node.drained()) {
    field("drained",
          node.drained_because() + (node.has_drain_deadline()
                                        ? fmt::format("; its jobs are moved in {}",
                                                      Age(FromProto(node.drain_deadline()) - now))
                                        : ""));
  }
  for (const std::string& problem : node.problems()) field("problem", problem);
  field("slots",
        fmt::format("{} of {} in use, {}", node.slots_used(), r.slots(), Count(r.cores(), "core")));
  field("memory", fmt::format("{} of {} reserved", FormatBytes(node.memory_used_bytes()),
                              FormatBytes(r.memory_bytes())));
  for (const v1::Gpu& gpu : r.gpus()) {
    const bool used = std::find(node.gpus_used().begin(), node.gpus_used().end(), gpu.index()) !=
                      node.gpus_used().end();
    field(fmt::format("gpu {}", gpu.index()),
          fmt::format("{}, {}{}", gpu.model(), FormatBytes(gpu.memory_bytes()),
                      used ? ", in use" : ""));
  }
  field("limits", r.limits().empty() ? "none: jobs are not held to what they asked for"
                                     : fmt::format("{}", fmt::join(r.limits(), ", ")));
  const auto when = [&](const google::protobuf::Timestamp& at) {
    return fmt::format("{} ({})", AbsoluteTime(FromProto(at)), Ago(now, FromProto(at)));
  };
  field("jobs shipped", fmt::format("{}", fmt::join(node.shipped_jobs(), ", ")));
  field("registered", fmt::format("{}, boot {}", when(node.registered_at()), node.incarnation()));
  field("last seen", when(node.last_seen_at()));
  field("version", node.version());
  if (node.has_certificate_ends_at()) {
    const nanoseconds end = FromProto(node.certificate_ends_at());
    std::string text = certificates::DescribeEnd(now, end);
    if (end <= now && node.state() != v1::NODE_STATE_LOST) {
      text += fmt::format(", its open session {}",
                          certificates::DescribeEnd(now, FromProto(node.session_ends_at())));
    }
    field("certificate", CertificateIsEnding(node, now) ? text + ": 'meshrun ca renew'" : text);
  }
  return out;
}

std::string DescribeCluster(const v1::DescribeClusterResponse& cluster, std::string_view address,
                            nanoseconds now, int width) {
  std::string out = fmt::format(
      "coordinator at {}, version {}, term {}, up {}\n  {} healthy of {}, {} active of {}\n",
      address, cluster.version(), cluster.term(), Age(now - FromProto(cluster.started_at())),
      Count(cluster.nodes_healthy(), "node"), cluster.nodes_total(),
      Count(cluster.jobs_active(), "job"), cluster.jobs_total());
  if (!cluster.coordinators().empty()) {
    out += fmt::format("  {}\n", CoordinatorsText(cluster));
  }
  if (!cluster.read_only_reason().empty())
    out += fmt::format("  READ-ONLY: {}\n", cluster.read_only_reason());
  Table events({"WHEN", "~EVENT", "~JOB", "WHAT"});
  for (const v1::ClusterEvent& event : cluster.events()) {
    events.Add({AbsoluteTime(FromProto(event.at())), event.kind(), event.job_id(),
                OneLine(event.message(), kEventWidth)});
  }
  if (!events.empty()) out += "\n" + events.Render(2, width);
  return out;
}

}  // namespace meshrun::client
