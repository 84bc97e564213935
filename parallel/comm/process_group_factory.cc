#include "parallel/comm/process_group_factory.h"

#include <cstdlib>
#include <map>
#include <memory>

#include "fmt/format.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

namespace meshrun {
namespace {

std::map<std::string, BackendFactory>& cuda_backends() {
  static auto& backends = *new std::map<std::string, BackendFactory>;
  return backends;
}

std::shared_ptr<gloo::transport::Device> gloo_device(const std::string& address) {
  const bool lazy = c10d::getDefaultGlooLazyInit();
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface, lazy);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(address, lazy);
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, const ProcessGroupOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.connect_timeout);
  gloo->devices.push_back(gloo_device(options.address));
  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend;
  try {
    backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, size, std::move(gloo));
  } catch (const std::exception& error) {  // c10d's or Gloo's, by what failed first
    throw RendezvousError(
        fmt::format("rank {} of {} in the process group \"{}\" could not connect to its peers "
                    "within {:g} s: {}",
                    rank, size, options.name,
                    static_cast<double>(options.connect_timeout.count()) / 1000, error.what()));
  }
  backend->setTimeout(options.timeout.value_or(kBackendDefaultTimeout));
  return backend;
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& backend,
    const ProcessGroupOptions& options) {
  using c10d::ProcessGroup;
  if (!has_backend(backend)) throw unknown_backend(backend);
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  const auto cuda = cuda_backends().find(backend);
  if (cuda != cuda_backends().end()) {
    const auto type = ProcessGroup::strToBackendType(backend);
    if (options.device) group->setBoundDeviceId(options.device);
    group->setBackend(c10::DeviceType::CUDA, type, cuda->second(store, rank, size, options));
    group->setDefaultBackend(type);
  } else {
    group->setDefaultBackend(ProcessGroup::GLOO);
  }
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::GLOO,
                    make_gloo(store, rank, size, options));
  group->setGroupName(options.name);
  group->setGroupDesc(options.name);
  return group;
}

bool has_backend(const std::string& backend) {
  return backend == "gloo" || cuda_backends().count(backend) > 0;
}

BackendError unknown_backend(const std::string& backend) {
  return BackendError(fmt::format(
      "the backend \"{}\" is unknown or not linked into this program: pass \"gloo\"{}", backend,
      backend == "nccl" ? ", or build with --config=cuda and depend on //parallel/comm:nccl_backend"
                        : ""));
}

bool register_cuda_backend(const std::string& name, BackendFactory factory) {
  return cuda_backends().emplace(name, factory).second;
}

}  // namespace meshrun
