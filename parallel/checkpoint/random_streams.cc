#include "parallel/checkpoint/random_streams.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/checkpoint/manifest.h"
#include "core/hash.h"
#include "parallel/base/digest.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/status_errors.h"
#include "parallel/shard/random/random_operation.h"

namespace meshrun::detail {
namespace {

constexpr char kShardedOperations[] = "sharded_operations";

std::vector<c10::Device> generator_devices(c10::Device device) {
  if (device.is_cpu()) return {device};
  return {c10::kCPU, device};
}

}  // namespace

c10::Device generator_device(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

GeneratorStates generator_states(c10::Device device) {
  GeneratorStates states;
  for (const c10::Device each : generator_devices(device)) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::scoped_lock lock(generator.mutex());
    const at::Tensor state = generator.get_state();
    states[c10::DeviceTypeName(each.type(), /*lower_case=*/true)] =
        std::string(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  }
  states[kShardedOperations] = std::to_string(random_state().counter);
  return states;
}

void set_generator_states(c10::Device device, const GeneratorStates& states) {
  for (const c10::Device each : generator_devices(device)) {
    const auto found = states.find(c10::DeviceTypeName(each.type(), /*lower_case=*/true));
    if (found == states.end()) continue;
    const at::Tensor state = at::empty({static_cast<int64_t>(found->second.size())}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), found->second.data(), found->second.size());
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(state);
  }
  const auto counter = states.find(kShardedOperations);
  if (counter == states.end()) return;
  set_random_state({random_state().seed, std::strtoull(counter->second.c_str(), nullptr, 10)});
}

void derive_generators(c10::Device device, const GeneratorStates& states, int64_t stream) {
  set_generator_states(device, states);
  const RandomOperation agreed = random_state();
  seed_generators(device, Digest().add(digest_of_states(states)).add(stream).value(), agreed.seed);
  set_random_state(agreed);
}

void seed_generators(c10::Device device, uint64_t own, uint64_t agreed) {
  for (const c10::Device each : generator_devices(device)) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::scoped_lock lock(generator.mutex());
    generator.set_current_seed(own);
    if (!each.is_cpu()) continue;
    // The numbers are those of `own`; current_seed() says `agreed`.
    auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
    at::mt19937 engine = cpu->engine();
    auto data = engine.data();
    data.seed_ = agreed;
    engine.set_data(data);
    cpu->set_engine(engine);
  }
  set_random_state({agreed, 0});
}

void set_saved_generators(c10::Device device, const Manifest& manifest,
                          const c10d::ProcessGroup& group) {
  const auto& by_rank = manifest.random_generators_by_rank;
  if (by_rank.empty()) {
    set_generator_states(device, manifest.random_generators);
  } else if (by_rank.size() == static_cast<size_t>(group.getSize())) {
    set_generator_states(device, by_rank[static_cast<size_t>(group.getRank())]);
  } else {
    derive_generators(device, manifest.random_generators, group.getRank());
  }
}

int64_t digest_of_states(const GeneratorStates& states) {
  Digest digest;
  for (const auto& [name, state] : states) {
    digest.add(static_cast<int64_t>(digest_of(name))).add(static_cast<int64_t>(digest_of(state)));
  }
  return static_cast<int64_t>(digest.value());
}

std::vector<GeneratorStates> gather_states(c10d::ProcessGroup& group, c10::Device device,
                                           const GeneratorStates& own) {
  nlohmann::json text;
  for (const auto& [name, state] : own) text[name] = HexEncode(state);
  std::vector<GeneratorStates> all;
  for (const std::string& each : gather_texts(group, device, text.dump())) {
    GeneratorStates& states = all.emplace_back();
    const auto parsed = nlohmann::json::parse(each);
    for (const auto& [name, state] : parsed.items()) {
      states[name] = value_of(BytesFromHex(state.get<std::string>()));
    }
  }
  return all;
}

}  // namespace meshrun::detail
