#include "parallel/comm/store/connect_tcp_store.h"

#include "parallel/base/no_names.h"

namespace meshrun {
namespace {

class TcpStore : public c10d::TCPStore {
 public:
  using TCPStore::TCPStore;

  c10::intrusive_ptr<c10d::Store> clone() override {
    c10d::TCPStoreOptions options;
    options.port = getPort();
    options.waitWorkers = false;
    options.timeout = getTimeout();
    return connect_tcp_store(getHost(), options);
  }
};

}  // namespace

c10::intrusive_ptr<c10d::TCPStore> connect_tcp_store(const std::string& address,
                                                     const c10d::TCPStoreOptions& options) {
  const NoNames no_names;
  return c10::make_intrusive<TcpStore>(address, options);
}

}  // namespace meshrun
