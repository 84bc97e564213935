"""Process groups, meshes and collectives with PhysicsNeMo's names: `from meshrun.distributed import DistributedManager`
in place of `from physicsnemo.distributed import DistributedManager`.
"""

# -- the manager --
from meshrun.distributed.config import ProcessGroupConfig, ProcessGroupNode
from meshrun.distributed.errors import (
    GroupError,
    LaunchEnvironmentError,
    MeshError,
    UndefinedGroupError,
    UninitializedError,
)
from meshrun.distributed.manager import (
    DistributedManager,
    PhysicsNeMoUndefinedGroupError,
    PhysicsNeMoUninitializedDistributedManagerWarning,
)
# -- end of the manager --
