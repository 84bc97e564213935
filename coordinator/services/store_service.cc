#include "coordinator/services/store_service.h"

namespace meshrun::coordinator {

MESHRUN_POST_UNARY(StoreService, SetValues, set_values)
MESHRUN_POST_UNARY(StoreService, GetValues, get_values)
MESHRUN_POST_UNARY(StoreService, WaitKeys, wait_keys)
MESHRUN_POST_UNARY(StoreService, AddValue, add_value)
MESHRUN_POST_UNARY(StoreService, CompareSetValue, compare_set_value)
MESHRUN_POST_UNARY(StoreService, AppendValue, append_value)
MESHRUN_POST_UNARY(StoreService, DeleteKey, delete_key)
MESHRUN_POST_UNARY(StoreService, CountKeys, count_keys)
MESHRUN_POST_UNARY(StoreService, EnterBarrier, enter_barrier)
MESHRUN_POST_UNARY(StoreService, PublishUniqueId, publish_unique_id)
MESHRUN_POST_UNARY(StoreService, AwaitUniqueId, await_unique_id)
MESHRUN_POST_UNARY(StoreService, RegisterGroup, register_group)
MESHRUN_POST_UNARY(StoreService, GetWorld, get_world)
MESHRUN_POST_UNARY(StoreService, CommitCheckpoint, commit_checkpoint)
MESHRUN_POST_UNARY(StoreService, GetCheckpoint, get_checkpoint)
MESHRUN_POST_UNARY(StoreService, ReportFinished, report_finished)
MESHRUN_POST_UNARY(StoreService, GetFinished, get_finished)

}  // namespace meshrun::coordinator
