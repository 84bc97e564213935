"""The C++ rules of this repository: Bazel's own, plus the tags that configurations filter by.

torch = True: the target reaches LibTorch; adds the dependency and the tag "torch" (left out under sanitizers), and
compiles with LibTorch's precompiled headers unless precompiled = False is given: for sources that include only little
of LibTorch, or with copts that g++ refuses together with them.
unoptimized = True: a test that takes longer to compile than to run.
gpu = True: the target needs a CUDA toolkit to build and, if a test, a GPU to run; implies torch unless torch = False is
given; adds the tags and builds only with --config=cuda.
Tests get GoogleTest's main() unless own_main = True.
"""

load(":flags.bzl", "UNOPTIMIZED", "optimization")

_LIBTORCH = "//third_party/libtorch"
_ONLY_WITH_CUDA = select({
    "//:cuda": [],
    "//conditions:default": ["//tools/bazel:incompatible"],
})

_SUPPRESSIONS = select({
    "//:tsan": ["//tools/bazel:tsan_suppressions"],
    "//conditions:default": [],
})

# -fpch-deps: Bazel compares the .d file's headers, and without this those of the precompiled header are not in it.
def _precompiled_copts(unoptimized):
    path = "third_party/libtorch/precompiled_{}optimized.h".format("un" if unoptimized else "")
    return select({
        "//:without_pch": [],
        "//conditions:default": ["-include", path, "-Winvalid-pch", "-Werror=invalid-pch", "-fpch-deps"],
    })

def _precompiled_deps(unoptimized):
    label = "{}:precompiled_{}optimized".format(_LIBTORCH, "un" if unoptimized else "")
    return select({
        "//:without_pch": [],
        "//conditions:default": [label],
    })

def _attributes(attributes, torch, gpu):
    if torch == None:
        torch = gpu
    unoptimized = attributes.pop("unoptimized", False)
    precompiled = attributes.pop("precompiled", torch)
    copts = attributes.pop("copts", [])
    copts = (UNOPTIMIZED if unoptimized else optimization(native.package_name())) + copts
    tags = list(attributes.pop("tags", []))
    deps = attributes.pop("deps", [])
    if torch:
        tags.append("torch")
        deps = deps + [_LIBTORCH]
    if gpu:
        tags.append("gpu")
        attributes["target_compatible_with"] = _ONLY_WITH_CUDA
        if torch:
            deps = deps + [_LIBTORCH + ":cuda"]
    if precompiled:
        copts = copts + _precompiled_copts(unoptimized)
        deps = deps + _precompiled_deps(unoptimized)
    attributes["copts"] = copts
    attributes["tags"] = tags
    attributes["deps"] = deps
    return attributes

def meshrun_cc_library(name, torch = None, gpu = False, **attributes):
    native.cc_library(name = name, **_attributes(attributes, torch, gpu))

def meshrun_cc_binary(name, torch = None, gpu = False, **attributes):
    attributes = _attributes(attributes, torch, gpu)
    attributes["deps"] = attributes["deps"] + _SUPPRESSIONS
    native.cc_binary(name = name, **attributes)

def meshrun_cc_test(name, torch = None, gpu = False, own_main = False, size = "small", **attributes):
    attributes = _attributes(attributes, torch, gpu)
    main = "//third_party/googletest" + (":gtest" if own_main else ":gtest_main")
    attributes["deps"] = attributes["deps"] + [main] + _SUPPRESSIONS
    native.cc_test(name = name, size = size, **attributes)
