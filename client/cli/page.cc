// meshrun page: the coordinator's page in a browser of this machine.
#include <fcntl.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "client/cli/context.h"
#include "client/cli/coordinator_http.h"
#include "client/http/page_proxy.h"
#include "client/http/redirect_page.h"
#include "core/exit_codes.h"
#include "core/os/process.h"

namespace meshrun::client {
namespace {

struct PageFlags {
  CoordinatorFlags coordinator;
  std::string job;
  uint32_t port = 0;
  bool no_open = false;
};

bool HasScreen() {
  return std::getenv("DISPLAY") != nullptr || std::getenv("WAYLAND_DISPLAY") != nullptr;
}

// By a file, because every user of this machine can read command lines. Null: no browser was
// started.
std::shared_ptr<const RedirectFile> OpenBrowser(PageProxy& proxy, const std::string& place) {
  auto written = RedirectFile::Write(proxy.url_for_once() + place);
  if (!written.ok()) {
    Say(fmt::format("{}; or open the address in a browser yourself",
                    std::string(written.status().message())));
    return nullptr;
  }
  const auto file = std::make_shared<const RedirectFile>(*std::move(written));
  proxy.OnUse([file] { file->Remove(); });
  const char* search = std::getenv("PATH");
  const auto xdg_open = os::FindCommand("xdg-open", "/", search == nullptr ? "" : search);
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const os::UniqueFd silent(null);
  // The browser goes on after this command.
  if (xdg_open.ok() && os::Spawn({.argv = {*xdg_open, file->path()},
                                  .stdout_fd = null,
                                  .stderr_fd = null,
                                  .owns_session = false})
                           .ok()) {
    return file;
  }
  Say("there is no xdg-open here: open the address in a browser yourself");
  file->Remove();
  return nullptr;
}

int Run(const PageFlags& flags) {
  os::BlockTerminationSignals();
  // Kept: it goes to no leader of another cluster.
  const auto connection = Connect(flags.coordinator, flags.job);
  if (!connection.ok()) return Fail(connection.status());
  const auto http = FindHttp(*connection, flags.job);
  if (!http.ok()) return Fail(http.status());
  const auto proxy = PageProxy::Start(static_cast<int>(flags.port), http->target,
                                      [&connection]() -> absl::StatusOr<HttpTarget> {
                                        auto again = FindHttp(*connection, "");
                                        if (!again.ok()) return again.status();
                                        return std::move(again->target);
                                      });
  if (!proxy.ok()) return Fail(proxy.status());
  const std::string place = http->job_id.empty() ? "" : "#/jobs/" + http->job_id;
  fmt::print("{}{}\n", (*proxy)->url(), place);
  FlushOutput();
  Say("the page is at this address of this machine, for you alone; Ctrl-C ends it");
  const auto file = !flags.no_open && HasScreen() ? OpenBrowser(**proxy, place) : nullptr;
  os::WaitForTerminationSignal();
  (*proxy)->Stop();
  if (file != nullptr) file->Remove();
  return kExitOk;
}

}  // namespace

void AddPage(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<PageFlags>();
  FlagSet flags = root.Command(
      "page",
      "Opens the coordinator's page in a browser: nodes, jobs, curves, logs\n\n"
      "The page is served on 127.0.0.1 with a random key, and passes on what it is asked to the "
      "coordinator, over\n"
      "its Unix socket or with your certificate. Your roles decide what it may change.");
  flags.Examples(
      "  meshrun page                       the cluster; Ctrl-C ends it\n"
      "  meshrun page geoid-k3x9w2          a job; the start of its id is enough\n"
      "  meshrun page --no-open             only print the address: with ssh -L, open it "
      "elsewhere");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->job, /*required=*/false, "Job to show first");
  flags.Number("--port", &values->port, "Port on 127.0.0.1 (default: 0, any free one)", 0, 65535);
  flags.Switch("--no-open", &values->no_open, "Only print the address");
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
