#include <functional>
#include <map>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/c_api/arguments.h"
#include "parallel/c_api/call_error.h"
#include "parallel/c_api/networks.h"
#include "parallel/nn/afno.h"
#include "parallel/nn/fno.h"
#include "parallel/nn/fully_connected.h"
#include "parallel/nn/unet.h"
#include "parallel/nn/vision_transformer.h"

namespace meshrun::c_api {
namespace {

// A network of one tensor; a checkpoint has the names that it has in C++.
template <typename Holder>
class ShippedNetwork final : public Network {
 public:
  ShippedNetwork(std::string name, Holder network)
      : Network(),
        title_(std::move(name)),
        network_(register_module("network", std::move(network))) {}

  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) override {
    if (inputs.size() != 1) {
      throw CallError(MESHRUN_INVALID_ARGUMENT,
                      fmt::format("\"{}\" takes one input and got {}", title_, inputs.size()));
    }
    return {network_->forward(inputs[0])};
  }
  torch::nn::Module& checkpointed() override { return *network_; }

 private:
  const std::string title_;
  Holder network_;
};

template <typename Holder, typename NetworkOptions>
std::shared_ptr<Network> make(const char* name, Options& given, const NetworkOptions& options) {
  given.finish();
  return std::make_shared<ShippedNetwork<Holder>>(name, Holder(options));
}

std::shared_ptr<Network> make_fully_connected(Options& given) {
  FullyConnectedOptions options;
  options.in_features(given.integer("in_features", options.in_features()));
  options.layer_size(given.integer("layer_size", options.layer_size()));
  options.out_features(given.integer("out_features", options.out_features()));
  options.num_layers(given.integer("num_layers", options.num_layers()));
  options.activation_fn(given.texts("activation_fn", options.activation_fn()));
  options.skip_connections(given.boolean("skip_connections", options.skip_connections()));
  options.adaptive_activations(
      given.boolean("adaptive_activations", options.adaptive_activations()));
  return make<FullyConnected>("fully_connected", given, options);
}

std::shared_ptr<Network> make_fno(Options& given) {
  FNOOptions options;
  options.in_channels(given.integer("in_channels", options.in_channels()));
  options.out_channels(given.integer("out_channels", options.out_channels()));
  options.width(given.integer("width", options.width()));
  options.num_layers(given.integer("num_layers", options.num_layers()));
  const std::vector<int64_t> modes = given.integers("modes", {});
  if (!modes.empty()) options.modes(std::vector<IntArgument>(modes.begin(), modes.end()));
  options.projection_channels(given.integer("projection_channels", options.projection_channels()));
  options.padding(given.integer("padding", options.padding()));
  options.coordinates(given.boolean("coordinates", options.coordinates()));
  options.activation_fn(given.text("activation_fn", options.activation_fn()));
  return make<FNO>("fno", given, options);
}

std::shared_ptr<Network> make_afno(Options& given) {
  AFNOOptions options(given.required_integers("inp_shape"), given.required_integer("in_channels"),
                      given.required_integer("out_channels"));
  options.patch_size(given.integers("patch_size", options.patch_size()));
  options.embed_dim(given.integer("embed_dim", options.embed_dim()));
  options.depth(given.integer("depth", options.depth()));
  options.mlp_ratio(given.number("mlp_ratio", options.mlp_ratio()));
  options.drop_rate(given.number("drop_rate", options.drop_rate()));
  options.num_blocks(given.integer("num_blocks", options.num_blocks()));
  options.sparsity_threshold(given.number("sparsity_threshold", options.sparsity_threshold()));
  options.hard_thresholding_fraction(
      given.number("hard_thresholding_fraction", options.hard_thresholding_fraction()));
  return make<AFNO>("afno", given, options);
}

std::shared_ptr<Network> make_unet(Options& given) {
  UNetOptions options(given.required_integer("in_channels"),
                      given.required_integer("out_channels"));
  options.base_channels(given.integer("base_channels", options.base_channels()));
  options.depth(given.integer("depth", options.depth()));
  options.num_groups(given.integer("num_groups", options.num_groups()));
  options.checkpoint_stages(given.boolean("checkpoint_stages", options.checkpoint_stages()));
  return make<UNet>("unet", given, options);
}

std::shared_ptr<Network> make_vision_transformer(Options& given) {
  VisionTransformerOptions options(given.required_integers("image_size"),
                                   given.required_integer("in_channels"),
                                   given.required_integer("out_channels"));
  options.patch_size(given.integers("patch_size", options.patch_size()));
  options.embed_dim(given.integer("embed_dim", options.embed_dim()));
  options.depth(given.integer("depth", options.depth()));
  options.num_heads(given.integer("num_heads", options.num_heads()));
  options.mlp_ratio(given.number("mlp_ratio", options.mlp_ratio()));
  options.dropout(given.number("dropout", options.dropout()));
  options.checkpoint_blocks(given.boolean("checkpoint_blocks", options.checkpoint_blocks()));
  return make<VisionTransformer>("vision_transformer", given, options);
}

using Maker = std::shared_ptr<Network> (*)(Options&);

const std::map<std::string, Maker>& makers() {
  static const auto& all =
      *new std::map<std::string, Maker>{{"afno", make_afno},
                                        {"fno", make_fno},
                                        {"fully_connected", make_fully_connected},
                                        {"unet", make_unet},
                                        {"vision_transformer", make_vision_transformer}};
  return all;
}

}  // namespace

std::shared_ptr<Network> make_shipped_network(const std::string& name, const char* options) {
  const auto found = makers().find(name);
  if (found != makers().end()) {
    Options given(options, name);
    return found->second(given);
  }
  std::vector<std::string> names;
  for (const auto& [known, maker] : makers()) names.push_back(known);
  throw CallError(MESHRUN_INVALID_ARGUMENT,
                  fmt::format("there is no network \"{}\": those that ship are {}", name,
                              fmt::join(names, ", ")));
}

}  // namespace meshrun::c_api
