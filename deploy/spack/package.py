from spack_repo.builtin.build_systems.generic import Package

from spack.package import Executable, InstallError, install_tree, join_path, license, requires, run_after, version


class Meshrun(Package):
    """Distributed scientific machine-learning training in C++ and Python: a launcher with torchrun's flags, a coordinator and
    workers, and the jobs that ship with them. The programs are those of the release's tarball; nothing is compiled."""

    homepage = "@URL@"
    url = "@URL@"

    license("Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    requires("platform=linux", msg="the release's programs are for Linux")
    requires("target=x86_64:", msg="the release's programs are for x86-64")

    sanity_check_is_file = ["env", join_path("bin", "meshrun"), join_path("bin", "meshrun-coordinator"),
                            join_path("bin", "meshrun-worker")]

    def install(self, spec, prefix):
        install_tree(".", prefix)

    # The programs load libraries of their own, and need no LibTorch. Shipped jobs look for LibTorch @LIBTORCH@ themselves: in
    # LIBTORCH_HOME, else in the torch that python3 imports.
    @run_after("install")
    def check_version(self):
        said = Executable(join_path(self.prefix.bin, "meshrun"))("--version", output=str)
        if str(self.spec.version) not in said:
            raise InstallError(f"meshrun --version says {said.strip()}, and the package is {self.spec.version}")
