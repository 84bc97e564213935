// ClusterService.Backup: the durable state as one file, while the coordinator runs.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "coordinator/services/shell.h"

namespace meshrun::coordinator {

// Deletes itself. One at a time: RESOURCE_EXHAUSTED for others.
grpc::ServerWriteReactor<v1::BackupResponse>* BeginBackup(const Shell& shell, const Sender& sender,
                                                          const v1::BackupRequest& request);

}  // namespace meshrun::coordinator
