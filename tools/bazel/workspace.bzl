"""meshrun_dependencies: what a workspace needs beside meshrun to build its targets from source.

    local_repository(name = "meshrun", path = "/path/of/the/clone")
    load("@meshrun//tools/bazel:workspace.bzl", "meshrun_dependencies")
    meshrun_dependencies()

The name must be "meshrun". tools/setup, run once in the clone, installs what all of this stands on.
"""

load("//third_party/cuda:repository.bzl", "cuda_repository")
load("//third_party/libtorch:repository.bzl", "libtorch_repository")

def _ours_impl(repository_ctx):
    clone = repository_ctx.path(Label("//:WORKSPACE")).dirname
    directory = clone.get_child("third_party").get_child("bazel").get_child(repository_ctx.attr.directory)
    for entry in directory.readdir():
        repository_ctx.symlink(entry, entry.basename)

# A directory of third_party/bazel/ as a repository.
_ours = repository_rule(
    implementation = _ours_impl,
    attrs = {"directory": attr.string(mandatory = True)},
    local = True,
)

_DEBIAN = {
    "bazel_skylib": "/usr/share/bazel/tools/skylib",
    "platforms": "/usr/share/bazel/tools/platforms",
    "rules_java": "/usr/share/bazel/rules/java",
    "rules_proto": "/usr/share/bazel/rules/proto",
}

def meshrun_dependencies():
    """Declares the repositories that are not declared yet."""
    for name in ["rules_cc", "remote_coverage_tools"]:
        if not native.existing_rule(name):
            _ours(name = name, directory = name)
    for name, path in _DEBIAN.items():
        if not native.existing_rule(name):
            native.local_repository(name = name, path = path)
    if not native.existing_rule("cuda"):
        cuda_repository(name = "cuda")
    if not native.existing_rule("libtorch"):
        libtorch_repository(name = "libtorch")
