// What people read of nodes and of the cluster. Pure.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "meshrun/v1/cluster_service.pb.h"

namespace meshrun::client {

// "HEALTHY"; for a drained node "DRAINING" while something is in use there, then "DRAINED"; for a
// node that the coordinator has drained "QUARANTINED".
std::string NodeStateText(const v1::Node& node);
// Whether the end of its certificate is near enough to be told.
bool CertificateIsEnding(const v1::Node& node, std::chrono::nanoseconds now);

// In natural order of names.
// `width`: as Table::Render.
std::string NodeTable(std::vector<v1::Node> nodes, std::chrono::nanoseconds now, int width = 0);
std::string DescribeNode(const v1::Node& node, std::chrono::nanoseconds now);
std::string DescribeCluster(const v1::DescribeClusterResponse& cluster, std::string_view address,
                            std::chrono::nanoseconds now, int width = 0);

}  // namespace meshrun::client
