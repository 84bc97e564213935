// A graph and the network on it on one GPU, against the CPU. A world of one sends nothing: what is
// left are own rows, the kernels, and where tensors are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parallel/manager/device_choice.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/graph/graph_network.h"
#include "parallel/nn/graph/icosahedral_mesh.h"
#include "parallel/nn/shared_module.h"

namespace meshrun {
namespace {

using at::Tensor;

struct Outcome {
  Tensor output;
  Tensor node_gradient;
  Tensor weight_gradient;
};

Outcome run_on(c10::Device device) {
  const IcosahedralMesh mesh = icosahedral_mesh(3);
  const GraphEdges edges{.src = at::tensor(mesh.src, at::kLong),
                         .dst = at::tensor(mesh.dst, at::kLong),
                         .num_src_nodes = mesh.num_nodes()};
  const DistributedGraph graph(partition_graph_nodewise(edges), {}, device);
  at::manual_seed(4);
  const Tensor nodes = at::randn({mesh.num_nodes(), 3}).to(device).requires_grad_();
  const Tensor features = at::randn({mesh.num_edges(), 2}).to(device);
  GraphNetwork network(
      GraphNetworkOptions(3, 2, 2).processor_size(2).hidden_dim_processor(16).mlp_activation_fn(
          "silu"));
  network->to(device);
  mark_module_as_shared(*network);
  const Tensor output = network(nodes, features, graph);
  output.square().sum().backward();
  const Tensor everywhere = graph.get_global_dst_node_features(output.detach());
  return {everywhere.cpu(), nodes.grad().cpu(), network->parameters()[0].grad().cpu()};
}

void expect_close(const Tensor& actual, const Tensor& wanted) {
  EXPECT_LE((actual - wanted).norm().item<double>(), 1e-5 * wanted.norm().item<double>());
}

TEST(GraphNcclTest, TheNetworkIsThatOfTheCpu) {
  if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
  DistributedManager::setup(0, 1, 0, "localhost", "12355", "nccl");
  const Outcome on_gpu = run_on(DistributedManager::get().device());
  const Outcome on_cpu = run_on(c10::kCPU);
  expect_close(on_gpu.output, on_cpu.output);
  expect_close(on_gpu.node_gradient, on_cpu.node_gradient);
  expect_close(on_gpu.weight_gradient, on_cpu.weight_gradient);
  // The same bits in every run.
  EXPECT_TRUE(
      at::equal(run_on(DistributedManager::get().device()).node_gradient, on_gpu.node_gradient));
  DistributedManager::cleanup();
}

}  // namespace
}  // namespace meshrun
