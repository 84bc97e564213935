#include "parallel/c_api/networks.h"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "fmt/format.h"
#include "parallel/c_api/call_error.h"

namespace meshrun::c_api {
namespace {

void require_file(const std::string& path, const char* kind) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return;
  throw CallError(MESHRUN_FILE, fmt::format("there is no {} at {}", kind, path));
}

// LibTorch's interpreter raises std::runtime_error for what an operator of the model raises.
template <typename Call>
auto as_the_model(const Call& call) {
  try {
    return call();
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw CallError(MESHRUN_MODEL, error.what());
  }
}

// The parameters and buffers of a script as those of a module: they share memory, so what an
// optimizer or a checkpoint writes here, the script computes with.
class ScriptPart : public torch::nn::Module {
 public:
  explicit ScriptPart(const torch::jit::Module& part) { mirror(*this, part); }

  static void mirror(torch::nn::Module& own, const torch::jit::Module& part) {
    for (const auto& named : part.named_parameters(/*recurse=*/false)) {
      own.register_parameter(named.name, named.value, named.value.requires_grad());
    }
    for (const auto& named : part.named_buffers(/*recurse=*/false)) {
      own.register_buffer(named.name, named.value);
    }
    for (const auto& named : part.named_children()) {
      own.register_module(named.name, std::make_shared<ScriptPart>(named.value));
    }
  }
};

class ScriptNetwork final : public Network {
 public:
  explicit ScriptNetwork(torch::jit::Module script) : script_(std::move(script)) {
    ScriptPart::mirror(*this, script_);
  }

  void train(bool on) override {
    Network::train(on);
    script_.train(on);
  }

  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) override {
    const c10::IValue result = as_the_model(
        [&] { return script_.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end())); });
    if (result.isTensor()) return {result.toTensor()};
    if (result.isTensorList()) return result.toTensorVector();
    if (result.isTuple()) {
      std::vector<at::Tensor> outputs;
      for (const c10::IValue& value : result.toTupleRef().elements()) {
        if (!value.isTensor()) refuse_result(result);
        outputs.push_back(value.toTensor());
      }
      return outputs;
    }
    refuse_result(result);
  }

 private:
  [[noreturn]] static void refuse_result(const c10::IValue& result) {
    throw CallError(MESHRUN_NOT_SUPPORTED,
                    fmt::format("the script returns {}: a tensor or a tuple of tensors is needed",
                                result.tagKind()));
  }

  torch::jit::Module script_;
};

// A package asks the loader for libtorch.so, which is empty and stands for LibTorch's other
// libraries. A LibTorch that is here in part has none: deploy/install puts one below libmeshrun.so.
void provide_libtorch() {
  constexpr const char* kName = "libtorch.so";
  if (dlopen(kName, RTLD_LAZY | RTLD_NOLOAD) != nullptr || dlopen(kName, RTLD_LAZY) != nullptr)
    return;
  Dl_info own;
  if (dladdr(reinterpret_cast<void*>(&meshrun_abi_version), &own) == 0) return;
  const auto library = std::filesystem::path(own.dli_fname).parent_path() / "meshrun/empty" / kName;
  dlopen(library.c_str(), RTLD_LAZY);
}

class PackageNetwork final : public Network {
 public:
  PackageNetwork(const std::string& path, c10::DeviceIndex device)
      : loader_(path, "model", /*run_single_threaded=*/false, /*num_runners=*/1, device) {}

  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) override {
    // A compiled program reads memory as it was laid out when it was compiled.
    std::vector<at::Tensor> dense;
    for (const at::Tensor& input : inputs) dense.push_back(input.contiguous());
    return as_the_model([&] { return loader_.run(dense); });
  }
  std::string problem_of_training() const override {
    return "a package of AOTInductor has no gradients: load the model as TorchScript to train it";
  }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
};

}  // namespace

std::shared_ptr<Network> load_script(const std::string& path) {
  require_file(path, "TorchScript file");
  try {
    return std::make_shared<ScriptNetwork>(torch::jit::load(path, c10::kCPU));
  } catch (const c10::Error& error) {
    throw CallError(MESHRUN_FILE, fmt::format("{} is not a TorchScript file that this LibTorch "
                                              "reads: {}",
                                              path, error.what_without_backtrace()));
  }
}

std::shared_ptr<Network> load_package(const std::string& path, c10::Device device) {
  require_file(path, "package of AOTInductor");
  try {
    provide_libtorch();
    // Compiled code asks for it once. Without it, an input of another shape is read beyond its end.
    setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", /*overwrite=*/0);
    return std::make_shared<PackageNetwork>(path, device.is_cuda() ? device.index() : -1);
  } catch (...) {
    throw CallError(MESHRUN_FILE, fmt::format("{} is not a package of AOTInductor that this "
                                              "LibTorch reads: {}",
                                              path, current_error().text()));
  }
}

}  // namespace meshrun::c_api
