"""Finds the headers of a Python: MESHRUN_PYTHON, else /usr/bin/python3. Without them, the target fails with a sentence when
built."""

_FOUND = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
)
"""

_ABSENT = """
load(":absent.bzl", "absent")

package(default_visibility = ["//visibility:public"])

absent(name = "headers")
"""

_ABSENT_RULE = """
def _absent_impl(ctx):
    fail("{reason}")

absent = rule(implementation = _absent_impl)
"""

def _python_impl(repository_ctx):
    python = repository_ctx.os.environ.get("MESHRUN_PYTHON") or "/usr/bin/python3"
    asked = repository_ctx.execute([python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"])
    include = asked.stdout.strip()
    if asked.return_code != 0 or not repository_ctx.path(include + "/Python.h").exists:
        repository_ctx.file("BUILD.bazel", _ABSENT)
        repository_ctx.file("absent.bzl", _ABSENT_RULE.format(
            reason = "No Python.h for {}: run tools/setup, or set MESHRUN_PYTHON to a Python with headers.".format(python),
        ))
        return

    # Debian's headers name one below x86_64-linux-gnu/ relative to the folder above.
    repository_ctx.symlink(include, "include")
    repository_ctx.file("BUILD.bazel", _FOUND)

python_repository = repository_rule(
    implementation = _python_impl,
    environ = ["MESHRUN_PYTHON"],
    local = True,
)
