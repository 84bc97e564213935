from spack_repo.builtin.build_systems.generic import Package

from spack.package import Executable, InstallError, install_tree, join_path, license, requires, run_after, version


class Meshrun(Package):
    """Distributed scientific machine-learning training in C++ and Python: a launcher with torchrun's flags, a coordinator and
    workers, the jobs that ship with them, and a library for solvers in C++, C and Fortran. All of it is that of the release's
    tarball; nothing is compiled."""

    homepage = "@URL@"
    url = "@URL@"

    license("Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    requires("platform=linux", msg="the release's programs are for Linux")
    requires("target=x86_64:", msg="the release's programs are for x86-64")

    sanity_check_is_file = ["env", join_path("bin", "meshrun"), join_path("bin", "meshrun-coordinator"),
                            join_path("bin", "meshrun-worker"), join_path("include", "meshrun", "meshrun.h"),
                            join_path("lib", "libmeshrun.so"), join_path("lib", "pkgconfig", "meshrun-c.pc")]

    def install(self, spec, prefix):
        install_tree(".", prefix)

    def setup_run_environment(self, env):
        env.set("MESHRUN_ROOT", self.prefix)
        env.prepend_path("CPATH", join_path(self.prefix, "include", "meshrun"))
        env.prepend_path("LIBRARY_PATH", join_path(self.prefix, "lib"))
        env.prepend_path("PKG_CONFIG_PATH", join_path(self.prefix, "lib", "pkgconfig"))
        env.prepend_path("CMAKE_PREFIX_PATH", self.prefix)

    def setup_dependent_build_environment(self, env, dependent_spec):
        self.setup_run_environment(env)

    # The programs load libraries of their own, and need no LibTorch. Shipped jobs, and programs under $MESHRUN_ROOT/env, look for
    # LibTorch @LIBTORCH@: in LIBTORCH_HOME, else in $MESHRUN_ROOT/libtorch, else in the torch that python3 imports.
    @run_after("install")
    def check_version(self):
        said = Executable(join_path(self.prefix.bin, "meshrun"))("--version", output=str)
        if str(self.spec.version) not in said:
            raise InstallError(f"meshrun --version says {said.strip()}, and the package is {self.spec.version}")
