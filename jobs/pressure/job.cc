#include "jobs/pressure/job.h"

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "jobs/darcy/evaluation.h"
#include "jobs/darcy/picture.h"
#include "jobs/runtime/elastic.h"
#include "jobs/runtime/ending.h"
#include "jobs/runtime/epoch_sampler.h"
#include "jobs/runtime/job.h"
#include "jobs/runtime/rank_mesh.h"
#include "jobs/runtime/training.h"
#include "jobs/runtime/words.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distribute_module.h"
#include "parallel/shard/shard_tensor.h"

namespace meshrun::pressure {
namespace {

using at::Tensor;
using darcy::Samples;

// Samples in the picture.
constexpr int64_t kShown = 3;

// Turns what a rank holds into what the model takes.
class Fields {
 public:
  Fields(const Samples& samples, const jobs::RankMesh& mesh)
      : samples_(samples),
        mesh_(mesh),
        whole_(DistributedManager::get().global_mesh()),
        domain_(whole_[jobs::kDomain]) {}

  // Fields of a batch of `batch` samples in all, of which this rank has its share's columns:
  // [share, rows, own columns] to the sharded [batch, 1, columns, rows].
  ShardTensor shard(const Tensor& own, int64_t batch) const {
    return from_parts(columns_first(own), whole_, batch, true);
  }
  // The same of samples that only the ranks of this group along domain have.
  ShardTensor shard_in_group(const Tensor& own) const {
    return from_parts(columns_first(own), domain_, own.size(0), true);
  }
  // One number for each sample of this rank's share, to [batch].
  ShardTensor shard_numbers(const Tensor& own, int64_t batch) const {
    return from_parts(own, whole_, batch, false);
  }
  // Back from shard().
  static Tensor local(const Tensor& field) {
    return ShardTensor(field).to_local().squeeze(1).transpose(1, 2);
  }

 private:
  using Shapes = std::vector<std::vector<int64_t>>;

  static Tensor columns_first(const Tensor& own) {
    return own.transpose(1, 2).unsqueeze(1).contiguous();
  }

  ShardTensor from_parts(const Tensor& own, const DeviceMesh& on, int64_t batch,
                         bool has_columns) const {
    // dp and domain may come in any order.
    const std::vector<std::string>& names = on.mesh_dim_names();
    Placements placements;
    std::map<int64_t, Shapes> shapes;
    for (size_t axis = 0; axis < names.size(); ++axis) {
      const bool is_data = names[axis] == jobs::kData;
      if (!is_data && !has_columns) {
        placements.push_back(Replicate());
        continue;
      }
      const int64_t dim = is_data ? 0 : 2;
      placements.push_back(Shard(dim));
      const auto& group = is_data ? mesh_.data : mesh_.spatial;
      for (const int64_t size :
           compute_split_shapes(is_data ? batch : samples_.shape.columns, group->getSize())) {
        std::vector<int64_t> shape = own.sizes().vec();
        shape[static_cast<size_t>(dim)] = size;
        shapes[static_cast<int64_t>(axis)].push_back(std::move(shape));
      }
    }
    return ShardTensor::from_local(own, on, placements, ShardingShapes::given(shapes));
  }

  const Samples& samples_;
  const jobs::RankMesh& mesh_;
  const DeviceMesh whole_;
  const DeviceMesh domain_;
};

std::map<std::string, std::string> identity_of(const Options& options, const NetworkFlags& flags,
                                               const Samples& samples) {
  std::map<std::string, std::string> identity = flags;
  identity["data"] = samples.origin;
  identity["--train-samples"] = std::to_string(options.train_samples);
  identity["--batch"] = std::to_string(options.batch);
  identity["--weight-decay"] = std::to_string(options.weight_decay);
  return identity;
}

jobs::TrainingResult train(ElasticContext& elastic, PressureModel& model, const Samples& samples,
                           const jobs::RankMesh& mesh, const Fields& fields, const Options& options,
                           const NetworkFlags& flags) {
  torch::optim::AdamW optimizer(
      model->parameters(),
      torch::optim::AdamWOptions(options.learning_rate).weight_decay(options.weight_decay));
  jobs::Training training(elastic, options, identity_of(options, flags, samples), *model,
                          optimizer);
  distribute_module(*model);
  jobs::EpochSampler sampler(options.seed, options.train_samples);
  const SplitRange share = mesh.share(options.batch);
  const c10::Device device = DistributedManager::get().device();
  return training.run([&](int64_t step) {
    const std::vector<int64_t> batch = sampler.batch(step, options.batch);
    const Tensor chosen = at::tensor(
        std::vector<int64_t>(batch.begin() + share.begin, batch.begin() + share.end), at::kLong);
    const auto pick = [&](const Tensor& all) { return all.index_select(0, chosen).to(device); };
    const ShardTensor k = fields.shard(pick(samples.permeability), options.batch);
    const ShardTensor truth = fields.shard(pick(samples.pressure), options.batch);
    const ShardTensor norms = fields.shard_numbers(pick(samples.pressure_norm), options.batch);
    // The mean relative error in the L2 norm; the root has no slope at zero.
    constexpr double kTiny = 1e-30;
    const Tensor squares = (model(k) - truth).square().sum({1, 2, 3});
    const Tensor loss = ((squares + kTiny).sqrt() / norms).sum() / options.batch;
    return ShardTensor(loss).full_tensor();
  });
}

// Groups along dp have test samples of their own, and may have fewer.
darcy::Predict predictor(PressureModel& model, const Fields& fields) {
  return [&](const Tensor& permeability) {
    return Fields::local(model(fields.shard_in_group(permeability)));
  };
}

void finish(ElasticContext& elastic, const Options& options, const NetworkFlags& flags,
            const jobs::TrainingResult& training, const PressureModel& model,
            const Samples& samples, const jobs::RankMesh& mesh,
            const std::optional<darcy::TestErrors>& test) {
  using nlohmann::ordered_json;
  jobs::Ending ending;
  if (test) {
    ending.result = jobs::format("relative L2 test error %.2f %%", 100 * test->relative_l2);
    ending.metrics = {{"relative_l2_test", test->relative_l2}};
  }
  const int data = mesh.data->getSize();
  const int domain = mesh.spatial->getSize();
  const double rate = training.samples_per_second(options.batch);
  ending.ranks =
      jobs::ranks(mesh.world->getSize()) + jobs::format(" (dp %d, domain %d)", data, domain);
  ending.rate = jobs::format("%.1f samples/s", rate);
  ending.entries = {{"relative_l2_test", test ? ordered_json(test->relative_l2) : ordered_json()},
                    {"worst_relative_l2_test", test ? ordered_json(test->worst) : ordered_json()},
                    {"mesh", {{"dp", data}, {"domain", domain}}},
                    {"samples_per_second", rate},
                    {"data", samples.origin},
                    {"data_solved", samples.solved},
                    {"data_seconds", samples.seconds},
                    {"rows", samples.shape.rows},
                    {"columns", samples.shape.columns},
                    {"train_samples", options.train_samples},
                    {"test_samples", options.test_samples},
                    {"batch", options.batch},
                    {"weight_decay", options.weight_decay},
                    {"recompute", options.recompute},
                    {"network", flags}};
  jobs::finish(elastic, options, training, *model, ending);
}

void run_in_world(ElasticContext& elastic, const Options& options, const NetworkFlags& flags,
                  const std::function<Network(int64_t columns, int64_t rows)>& make_network) {
  const DistributedManager& manager = DistributedManager::get();
  const jobs::RankMesh mesh = jobs::join_mesh(options.domain, jobs::kDomain);
  if (options.batch < mesh.data->getSize()) {
    throw jobs::UsageError("--batch " + std::to_string(options.batch) +
                           " has no sample for some of the mesh's " +
                           std::to_string(mesh.data->getSize()) + " groups along dp");
  }
  const Samples samples = darcy::load_samples(options, mesh);
  const Fields fields(samples, mesh);

  at::manual_seed(options.seed);
  PressureModel model(make_network(samples.shape.columns, samples.shape.rows), samples,
                      manager.device());
  const jobs::TrainingResult training =
      train(elastic, model, samples, mesh, fields, options, flags);
  std::optional<darcy::TestErrors> test;
  if (!options.no_evaluation) {
    model->eval();
    const darcy::Predict predict = predictor(model, fields);
    test = darcy::evaluate(predict, samples, options.train_samples, options.test_samples, mesh,
                           manager.device());
    if (!options.png.empty()) {
      const darcy::Shown shown =
          darcy::show(predict, samples, options.train_samples,
                      std::min(kShown, options.test_samples), mesh, manager.device());
      if (manager.rank() == 0) {
        darcy::write_picture(shown, *test, training.steps, options.png);
      }
    }
  }
  finish(elastic, options, flags, training, model, samples, mesh, test);
}

}  // namespace

void run(const Options& options, const NetworkFlags& flags,
         const std::function<Network(int64_t columns, int64_t rows)>& make_network) {
  jobs::join_world();
  jobs::run_elastic(
      [&](ElasticContext& elastic) { run_in_world(elastic, options, flags, make_network); });
}

}  // namespace meshrun::pressure
