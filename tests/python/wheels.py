"""Builds the wheels once in a run, and installs them as a user would, without network: here and in an older Debian."""

import atexit
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "tools"), str(TESTS / "acceptance"), str(TESTS / "soak")]
import environments
from environments import PYTHON, libtorch
from harness import ROOT, check

# What torch imports for objects, DistributedDataParallel and FSDP.
BESIDE_TORCH = TESTS / "python/beside-torch-requirements.txt"


def scratch():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="mrt-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def call_tool(directory, *arguments, **env):
    return subprocess.run([ROOT / "tools/wheel", "--out", directory, *arguments], env={**os.environ, **env}, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=3600)


def build(directory, name, *arguments, **env):
    """tools/wheel for this one; returns the path of the wheel and what it said."""
    done = call_tool(directory, "--only", name, *arguments, **env)
    check(done.returncode == 0, f"tools/wheel exited {done.returncode}: {done.stderr[-600:]}")
    made = list(directory.glob("*"))
    check(len(made) == 1 and made[0].suffix == ".whl", f"tools/wheel made {[path.name for path in made]}")
    return made[0], done.stdout


@functools.cache
def wheel(name="meshrun", *arguments):
    """Its path; built once."""
    made = environments.made_once("-".join(["wheel", name, *arguments]), lambda directory: build(directory, name, *arguments))
    return next(made.glob("*.whl"))


def python_environment(directory):
    """A fresh virtual environment with nothing in it, without pip; returns its directory."""
    call([PYTHON, "-m", "venv", "--without-pip", directory])
    return directory


def torch():
    """The cached site-packages with the torch that this tree's wheel is for. Raises environments.Missing."""
    return environments.packages(environments.torch_of_this_tree())


def put_torch_into(environment):
    """torch from the cache in a virtual environment, by links: as pip would have installed it there."""
    for cached in (torch(), environments.packages(BESIDE_TORCH)):
        for path in cached.iterdir():
            if path.name != "__pycache__":
                (packages(environment) / path.name).symlink_to(path)


def pip(environment, *arguments):
    return call([PYTHON, "-m", "pip", "--disable-pip-version-check", "--python", environment / "bin/python", *arguments])


def install(environment, *wheels):
    """`meshrun`, or these wheels. Dependencies are not looked at: torch's own are not all in its cache."""
    pip(environment, "install", "--no-index", "--no-deps", "--no-cache-dir", "--quiet", *(wheels or (wheel(),)))


def packages(environment):
    return next((environment / "lib").glob("python3*/site-packages"))


def call(command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    check(done.returncode == 0, f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


class System:
    """A Debian with its Python in a directory of a site; root enters it by chroot in namespaces of its own. bullseye has glibc
    2.31, libstdc++ of g++ 10 and Python 3.9, bookworm Python 3.11, trixie 3.13."""

    def __init__(self, site, release):
        environments.need_root("to enter another system")
        self.site = site
        self.root = site.directory / release
        self.root.mkdir()
        call(["tar", "-C", self.root, "--numeric-owner", "-xf", environments.debian(release, "python3-venv")])

    def run(self, script, timeout=300, **mounted):
        """Runs a shell's words in it; directories of this machine are mounted read-only at /NAME. Returns (exit code, stdout,
        stderr)."""
        mounts = "".join(f"mkdir -p '{self.root}/{name}'; mount --bind '{path}' '{self.root}/{name}'; "
                         f"mount -o remount,bind,ro '{self.root}/{name}'\n" for name, path in mounted.items())
        enter = f"""
set -e
mount --make-rprivate /
mount -t proc proc '{self.root}/proc'
mount -t sysfs -o ro sysfs '{self.root}/sys'
mount -t tmpfs tmpfs '{self.root}/tmp'
mkdir -p '{self.root}/dev/shm'
mount -t tmpfs tmpfs '{self.root}/dev/shm'
{mounts}
exec chroot '{self.root}' /usr/bin/env -i HOME=/root PATH=/env/bin:/usr/bin:/bin sh -c "cd /root; $1"
"""
        return self.site.run(["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "bash", "-c", enter, "bash",
                              script], timeout=timeout)[:3]


def runs_in_an_old_system(site):
    """Installs `meshrun` there, without network, and runs a job of two ranks; its coordinator and workers are real. Raises
    environments.Missing. Returns figures."""
    system = System(site, "bullseye")
    code, out, err = system.run("ldd --version | sed 1q; python3 -m venv /env && pip install --quiet --no-index /wheels/meshrun-*.whl "
                                "&& meshrun version", wheels=wheel().parent)
    check(code == 0 and "2.31" in out.splitlines()[0], f"installing: exit code {code}: {out}{err}")
    code, out, err = system.run("meshrun run --nproc 2 -- sh -c 'echo $RANK of $WORLD_SIZE'; python -m meshrun nonsense; echo $?")
    check("0 of 2" in out and "1 of 2" in out and out.splitlines()[-1] == "2", f"meshrun run: exit code {code}: {out}{err}")
    for program in ("meshrun-coordinator", "meshrun-worker", "meshrun-probe"):
        code, out, err = system.run(f"{program} --help")
        check(code == 0 and program in out, f"{program} --help: exit code {code}: {out}{err}")
    code, out, err = system.run("pip uninstall --yes --quiet meshrun; find /env -path '*site-packages/meshrun*'")
    check(code == 0 and not out, f"uninstalling leaves {out}{err}")
    return "glibc 2.31: a job of two ranks"


def libraries_bind_in_an_old_system(site):
    """Loads every program and library of `meshrun-torch` there with torch's libraries, and looks for functions that nobody has.
    Then the shipped job geoid trains on two ranks. Raises environments.Missing. Returns figures."""
    system = System(site, "bullseye")
    unpack = "import glob, zipfile\nfor path in glob.glob('/wheels/*.whl'): zipfile.ZipFile(path).extractall('/site')"
    (site.directory / "both").mkdir()
    for path in (wheel(), wheel("meshrun-torch")):
        shutil.copy(path, site.directory / "both")
    (site.directory / "both/unpack.py").write_text(unpack)
    # libucm takes these of libucs, which loads it.
    code, out, err = system.run("python3 /wheels/unpack.py && chmod -R a+x /site/meshrun/programs && ln -s /torch/torch /site/torch && "
                                "cd /site/meshrun && for file in lib/*.so* programs/libexec/meshrun/jobs/*/*; do echo = $file; "
                                "ldd -r $file 2>&1 | grep -E 'undefined|not found' | grep -vw -e ucs_load_modules -e "
                                "ucs_sys_is_dynamic_lib; done; true", timeout=600, wheels=site.directory / "both", torch=torch())
    files = [line for line in out.splitlines() if line.startswith("= ")]
    check(code == 0 and len(files) > 10 and len(files) == len(out.splitlines()), f"exit code {code}: {out[-2000:]}{err}")
    code, out, err = system.run("PATH=/site/meshrun/programs/bin:$PATH meshrun run --nproc 2 --job geoid -- --steps 50", timeout=600,
                                torch=torch())
    check(code == 0 and "held-out RMSE" in out, f"geoid: exit code {code}: {out}{err}")
    return f"{len(files)} programs and libraries bind with glibc 2.31; geoid trains"


def trains_on_a_gpu(site, made):
    """Installs the wheel for GPUs, and adds tensors of a GPU on NCCL; returns figures, or nothing where there is no GPU."""
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True) if shutil.which("nvidia-smi") else None
    if listed is None or listed.returncode or not listed.stdout.strip():
        return ""
    environment = python_environment(site.directory / "with a gpu")
    put_torch_into(environment)
    install(environment, wheel(), made)
    program = """import torch, torch.distributed as dist
dist.init_process_group("cpu:meshrun,cuda:meshrun", init_method="tcp://127.0.0.1:29517", rank=0, world_size=1)
x = torch.ones(3, device="cuda", requires_grad=True)
from meshrun.distributed import all_gather_v
all_gather_v(x, [3]).square().sum().backward()
dist.all_reduce(x.grad)
print("sum", x.grad.sum().item())
dist.destroy_process_group()
"""
    code, out, err = site.run([environment / "bin/python", "-c", program], timeout=300)[:3]
    check(code == 0 and "sum 6.0" in out, f"on the GPU: exit code {code}: {out[-600:]}{err[-600:]}")
    return f"all_gather_v and its gradient on {listed.stdout.splitlines()[0]}"


def python_with_headers(version):
    """For whose Python the extension can be built. Raises environments.Missing."""
    asked = subprocess.run([f"python{version}", "-c", "import pathlib, sysconfig; print(pathlib.Path(sysconfig.get_path('include'), "
                            "'Python.h').exists())"], capture_output=True, text=True) if shutil.which(f"python{version}") else None
    if asked is None or asked.stdout.strip() != "True":
        raise environments.Missing(f"there is no python{version} with its headers in PATH")
    return shutil.which(f"python{version}")


def torch_of(python, version):
    """A directory with the torch of that Python, from PyPI, in the user's cache. Raises environments.Missing."""
    place = environments.CACHE / f"python/torch-{libtorch()}-cp{version.replace('.', '')}"
    if not place.exists():
        unfinished = place.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary", ":all:",
                               "--target", unfinished, f"torch=={libtorch()}"], capture_output=True, text=True)
        if done.returncode:
            raise environments.Missing(f"torch {libtorch()} for Python {version}: {environments.last_line(done.stderr)}")
        unfinished.rename(place)
    return place


def trains_in(site, release, version):
    """In a Debian whose Python is `version`: installs both wheels, built for it, without network, trains geoid and reduces on the
    backend, then uninstalls. Raises environments.Missing. Returns figures."""
    python = PYTHON if version == "3.11" else python_with_headers(version)
    own = torch() if version == "3.11" else torch_of(python, version)
    system = System(site, release)
    (site.directory / "both").mkdir()
    for name in ("meshrun", "meshrun-torch"):
        path = wheel(name) if version == "3.11" else build(scratch(), name, MESHRUN_PYTHON=python)[0]
        shutil.copy(path, site.directory / "both")
    packages = f"/env/lib/python{version}/site-packages"
    program = """import torch, torch.distributed as dist
dist.init_process_group("meshrun")
x = torch.ones(3)
dist.all_reduce(x)
print("sum", x.sum().item())
dist.destroy_process_group()
"""
    (site.directory / "both/reduces.py").write_text(program)
    code, out, err = system.run(
        f"python3 -m venv /env && ln -s /beside/* {packages}/ && rm -f {packages}/torch && cp -rs /torch/torch {packages}/ && "
        "pip install --quiet --no-index --no-deps /wheels/*.whl && meshrun run --nproc 2 --job geoid -- --steps 50 && "
        "meshrun run --nproc 2 -- python /wheels/reduces.py && pip uninstall --yes --quiet meshrun meshrun-torch && "
        f"find {packages} -path '*site-packages/meshrun*'", timeout=900, wheels=site.directory / "both", torch=own, beside=torch())
    check(code == 0, f"{release}: exit code {code}: {out[-900:]}{err[-900:]}")
    check("held-out RMSE" in out and out.count("sum 6.0") == 2, f"{release}: {out[-900:]}")
    check(out.splitlines()[-1].find("site-packages/meshrun") < 0, f"{release}: uninstalling leaves {out.splitlines()[-1]}")
    return f"{release}, Python {version}, torch {libtorch()}: geoid trains"
