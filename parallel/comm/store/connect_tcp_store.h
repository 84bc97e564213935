// Makes c10d's TCPStore without its queries to name servers: for its log, the thread that connects
// would look up the name of the address that it has reached. Queries that the server's own thread
// makes about its clients are not suppressed.
#pragma once

#include <string>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace meshrun {

// `address`: numeric. Errors and threads: as TCPStore. Its clones ask no questions either.
c10::intrusive_ptr<c10d::TCPStore> connect_tcp_store(const std::string& address,
                                                     const c10d::TCPStoreOptions& options);

}  // namespace meshrun
