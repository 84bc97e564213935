"""Trees of process groups to be made together: children split their parent.

    config = ProcessGroupConfig(ProcessGroupNode("world"))
    config.add_node(ProcessGroupNode("model_parallel"), parent="world")
    config.add_node(ProcessGroupNode("data_parallel"), parent="world")
    config.set_leaf_group_sizes({"model_parallel": 4, "data_parallel": 2})
    DistributedManager.create_groups_from_config(config)

Siblings are orthogonal: ranks with the same position in one form a group of the other. Corresponds to
physicsnemo.distributed.config.
"""

import operator

from meshrun.distributed.errors import GroupError


class ProcessGroupNode:
    """A group of the tree: its name, and how many ranks each of its groups has; None: not known yet."""

    def __init__(self, name, size=None):
        if not isinstance(name, str) or not name:
            raise GroupError(f"the name of a process group is a string that is not empty, but {name!r} was given")
        self.name = name
        self.size = None if size is None else _size(name, size)

    def __repr__(self):
        return f"ProcessGroupNode(name={self.name!r}, size={self.size})"


class ProcessGroupConfig:
    """A tree of ProcessGroupNodes; `node` is its root, usually named "world"."""

    def __init__(self, node):
        self.root = node
        self.root_id = node.name
        self._nodes = {node.name: node}
        self._parents = {node.name: None}

    def add_node(self, node, parent):
        """Adds `node` below `parent`, a node of this tree or its name. GroupError: there is none, or the name is taken."""
        if isinstance(parent, ProcessGroupNode):
            parent = parent.name
        if parent not in self._nodes:
            raise GroupError(f"{node.name!r} cannot be added below {parent!r}: the configuration has {self._known()}")
        if node.name in self._nodes:
            raise GroupError(f"the configuration has a process group {node.name!r} already, of size "
                             f"{self._nodes[node.name].size}")
        self._nodes[node.name] = node
        self._parents[node.name] = parent

    def get_node(self, name):
        """The ProcessGroupNode of that name; GroupError: there is none."""
        if name not in self._nodes:
            raise GroupError(f"process group {name!r} is not in this configuration, which has {self._known()}")
        return self._nodes[name]

    def leaf_groups(self):
        """Names of the nodes without children, in the order they were added."""
        parents = set(self._parents.values())
        return [name for name in self._nodes if name not in parents]

    def set_leaf_group_sizes(self, group_sizes, update_parent_sizes=True):
        """Sets sizes of leaves, by name; with `update_parent_sizes` also those of all parents.

        GroupError: a name is not that of a leaf, a size is not a positive integer, or a leaf has no size when its parent
        needs it; sizes are then as before.
        """
        leaves = self.leaf_groups()
        for name in group_sizes:
            if name not in leaves:
                self.get_node(name)
                raise GroupError(f"process group {name!r} is not a leaf: it has the children {self._children(name)}")
        given = {name: _size(name, size) for name, size in group_sizes.items()}
        if update_parent_sizes:
            self._product(self.root_id, given)
        for name, size in given.items():
            self._nodes[name].size = size
        if update_parent_sizes:
            self.update_parent_sizes()

    def update_parent_sizes(self, verbose=False):
        """Makes each parent's size the product of its children's; returns the root's. GroupError: a leaf has no size."""
        for name in self._nodes:
            node, size = self._nodes[name], self._product(name, {})
            if node.size != size:
                if verbose:
                    print(f"process group {name!r}: size {size}, before {node.size}")
                node.size = size
        return self.root.size

    def _known(self):
        return ", ".join(map(repr, self._nodes))

    def _children(self, name):
        return [child for child, parent in self._parents.items() if parent == name]

    def _product(self, name, given):
        children = self._children(name)
        product = 1
        for child in children:
            product *= self._product(child, given)
        size = product if children else given.get(name, self._nodes[name].size)
        if size is None:
            raise GroupError(f"process group {name!r} is a leaf without a size: name it in set_leaf_group_sizes()")
        return size

    def _in_order(self):
        """(name, size, name of the parent) of each node, parents first."""
        return [(name, node.size, self._parents[name]) for name, node in self._nodes.items()]


def _size(name, size):
    try:
        number = operator.index(size)
    except TypeError:
        number = 0
    if number < 1 or isinstance(size, bool):
        raise GroupError(f"the size of process group {name!r} is a positive integer, but {size!r} was given")
    return number
