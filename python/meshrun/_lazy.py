"""Packages whose names are looked up in their submodules on first use."""

import importlib
import sys


def names(package, module_of):
    """__getattr__ and __dir__ for a package. `module_of`: the submodule, by name."""
    def look_up(name):
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{module}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed():
        return sorted({*vars(sys.modules[package]), *module_of})

    return look_up, listed
