#include "parallel/comm/process_group_factory.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "parallel/base/spent_time.h"
#include "parallel/comm/interface/reduction_order.h"
#include "parallel/comm/ucx/backend.h"
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
  gloo->global_ranks_in_group.assign(options.world_ranks.begin(), options.world_ranks.end());
  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend;
  const auto began = std::chrono::steady_clock::now();
  try {
    backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, size, std::move(gloo));
  } catch (const std::exception& error) {  // c10d's or Gloo's, by what failed first
    throw RendezvousError(fmt::format(
        "rank {} of {} in the process group \"{}\" could not connect to its peers "
        "in {}: {}",
        rank, size, options.name, spent_of(began, options.connect_timeout), error.what()));
  }
  backend->setTimeout(options.timeout.value_or(kBackendDefaultTimeout));
  return backend;
}

c10::intrusive_ptr<c10d::Backend> make_ucx(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, const ProcessGroupOptions& options) {
  auto ucx =
      c10::make_intrusive<UcxBackend::Options>(options.timeout.value_or(kBackendDefaultTimeout));
  ucx->group_name = ucx->group_desc = options.name;
  ucx->global_ranks_in_group.assign(options.world_ranks.begin(), options.world_ranks.end());
  ucx->engine = options.engine;
  ucx->hosts = options.hosts;
  ucx->sums_in_rank_order = sums_in_rank_order();
  ucx->connect_timeout = options.connect_timeout;
  const char* check = std::getenv("MESHRUN_CHECK_COLLECTIVES");
  ucx->check_collectives = check == nullptr || std::string_view(check) != "0";
  return c10::make_intrusive<UcxBackend>(store, rank, size, std::move(ucx));
}

bool is_cpu_backend(const std::string& name) { return name == "gloo" || name == "ucx"; }

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& backend,
    const ProcessGroupOptions& options) {
  using c10d::ProcessGroup;
  const std::optional<BackendChoice> choice = parse_backend(backend);
  if (!choice) throw unknown_backend(backend);
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  const bool is_ucx = choice->cpu == "ucx";
  const auto cpu_type = is_ucx ? ProcessGroup::CUSTOM : ProcessGroup::GLOO;
  group->setDefaultBackend(cpu_type);
  if (!choice->cuda.empty()) {
    const auto type = ProcessGroup::strToBackendType(choice->cuda);
    const BackendFactory factory = cuda_backends().at(choice->cuda);
    if (options.device) group->setBoundDeviceId(options.device);
    group->setBackend(c10::DeviceType::CUDA, type, factory(store, rank, size, options));
    group->setDefaultBackend(type);
  }
  group->setBackend(c10::DeviceType::CPU, cpu_type,
                    (is_ucx ? make_ucx : make_gloo)(store, rank, size, options));
  group->setGroupName(options.name);
  group->setGroupDesc(options.name);
  return group;
}

std::optional<std::string> backend_of_environment() {
  const char* name = std::getenv("MESHRUN_BACKEND");
  if (name == nullptr || *name == '\0') return std::nullopt;
  return name;
}

std::optional<BackendChoice> parse_backend(const std::string& backend) {
  BackendChoice choice;
  std::string_view text = backend;
  while (true) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, end);
    const size_t colon = entry.find(':');
    const std::string_view device = entry.substr(0, colon == entry.npos ? 0 : colon);
    const std::string name(entry.substr(colon == entry.npos ? 0 : colon + 1));
    if (is_cpu_backend(name) && (device.empty() || device == "cpu")) {
      choice.cpu = name;
    } else if (cuda_backends().count(name) > 0 && (device.empty() || device == "cuda")) {
      choice.cuda = name;
    } else {
      return std::nullopt;
    }
    if (end == text.size()) return choice;
    text.remove_prefix(end + 1);
  }
}

bool has_backend(const std::string& backend) { return parse_backend(backend).has_value(); }

BackendError unknown_backend(const std::string& backend) {
  return BackendError(fmt::format(
      "the backend \"{}\" is unknown or not linked into this program: pass \"ucx\" or "
      "\"gloo\"{}",
      backend,
      backend == "nccl" ? ", or build with --config=cuda and depend on //parallel/comm:nccl_backend"
                        : ""));
}

bool register_cuda_backend(const std::string& name, BackendFactory factory) {
  return cuda_backends().emplace(name, factory).second;
}

}  // namespace meshrun
