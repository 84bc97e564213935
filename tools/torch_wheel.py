"""What the wheel `meshrun-torch` holds: the extension of Python, the library that it loads, the shipped jobs, and the Python
files that import torch. tools/wheel writes it."""

import ast
import os
import pathlib
import re
import shutil

EXTENSION = ["//parallel:libmeshrun.so", "//python/extension:_torch.so", "//python/extension:built_for_file"]
EXTENSION_CUDA = "//parallel:libmeshrun_cuda.so"
# Where pip installs torch and what its libraries for GPUs load, relative to our package.
TORCH = ["../torch/lib"]
TORCH_CUDA = [*TORCH, "../nvidia/nccl/lib", "../nvidia/cu13/lib"]
ENTRY = "meshrun._torch_entry:register"
ENTRY_POINTS = {"torch.backends": {"meshrun": ENTRY}, "torch.distributed.backends": {"meshrun": ENTRY}}
SUMMARY = "meshrun's collectives, sharded tensors and transforms for PyTorch, and its training jobs"
DESCRIPTION = """# meshrun-torch

    import torch.distributed as dist

    dist.init_process_group("meshrun")

torch.distributed with meshrun's collectives, and the shipped training jobs: `meshrun run --nproc 2 --job geoid`. It is built
for one minor version of torch and one of Python, which the names of its file tell.
"""


def _imports(path):
    """Full names of all modules that a file of python/meshrun imports, wherever the statement stands."""
    package = ["meshrun", *path.parts[:-1]]
    for node in ast.walk(ast.parse((_ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[:len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{name.name}" for name in node.names)


_ROOT = pathlib.Path(__file__).resolve().parents[1] / "python/meshrun"


def parts():
    """The files and packages directly below python/meshrun that are installed with torch: those that import it, and those that
    import such a one. The others are the wheel `meshrun`, as `import meshrun` itself is."""
    needs = {}
    for path in sorted(_ROOT.rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            place = path.relative_to(_ROOT)
            needs.setdefault(place.parts[0].split(".")[0], set()).update(_imports(place))
    needs.pop("__init__")
    found = {"_torch"}
    while True:
        more = {name for name, modules in needs.items() if name not in found for module in modules
                if module.split(".")[0] == "torch" or re.match(r"meshrun\.(\w+)", module + ".")
                and module.split(".")[1] in found}
        if not more:
            break
        found |= more
    return [path for path in sorted(_ROOT.iterdir()) if path.name.split(".")[0] in found and path.name != "__pycache__"]


def copy(paths, package):
    package.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if path.is_dir():
            shutil.copytree(path, package / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(path, package / path.name)


def built_for(bundle):
    """The Python that Bazel builds the extension for: (major, minor, the end of an extension's name)."""
    python = os.environ.get("MESHRUN_PYTHON") or "/usr/bin/python3"
    said = bundle.run(python, "-c", "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('EXT_SUFFIX'))")
    major, minor, suffix = said.split()
    return major, minor, suffix


def label(libtorch, cuda):
    """The local version (PEP 440) that tells wheels of one meshrun for several torches apart."""
    return f"pt{libtorch.replace('.', '')}" + ("cu13" if cuda else "")


def fill(tree, bundle, config, cuda):
    """Builds, and fills the tree, which is the package's directory. Returns the number of torch."""
    jobs = bundle.shipped_jobs(cuda)
    binaries = bundle.build([*jobs, *bundle.FLOOR], config)
    also = TORCH_CUDA if cuda else TORCH
    bundle.add_jobs(tree, binaries, jobs, "programs/", also=also)
    # While Bazel's directory has these: the next build replaces what its flags change.
    tree.lower(binaries)

    labels = [*EXTENSION, *([EXTENSION_CUDA] if cuda else []), *bundle.FLOOR]
    binaries = bundle.build(labels, [*config, *bundle.IN_ONE_FILE])
    library = EXTENSION_CUDA if cuda else EXTENSION[0]
    tree.copied["libmeshrun.so"] = tree.path("lib/libmeshrun.so")
    tree.program(bundle.built_path(binaries, library), "lib/libmeshrun.so", also)
    suffix = built_for(bundle)[2]
    tree.program(bundle.built_path(binaries, EXTENSION[1]), f"_torch{suffix}", also)
    shutil.copyfile(binaries / "python/extension/_built_for.py", tree.path("torch/_built_for.py"))
    tree.lower(binaries)
    return bundle.libtorch_version()


def check_nothing_of_torch(tree, bundle):
    """Ends where a library of torch, NCCL, CUDA or a driver is in the tree."""
    for path in sorted(tree.directory.rglob("*")):
        if path.is_file() and bundle.OF_THE_HOST.match(path.name):
            bundle.fail(f"{path.name} is in the wheel, and belongs to torch, to CUDA or to a driver")
