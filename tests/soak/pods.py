"""Pods of Kubernetes manifests, run by podman. podman has no StatefulSet, no Service and no Secret, so there is one pod of each
replica, at a fixed address under the Services' names, with volumes and secrets mounted by path."""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from environments import Missing, last_line

SUBNET = "10.89.117"
# That the manifests' pods run as.
USER = 10001


def run(command, timeout=900, quiet=False, **options):
    """Output of a command. Where it fails: the end of its output on stderr, and Missing with the last line."""
    done = subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode and not quiet:
        print(*done.stdout.splitlines()[-20:], sep="\n", file=sys.stderr)
        raise Missing(f"{' '.join(map(str, command[:6]))} ... exited {done.returncode}: {last_line(done.stdout)}")
    return done.stdout


class Podman:
    """podman with storage, networks and settings of its own, all gone with the stack `undo`."""

    def __init__(self, directory, undo):
        settings = directory / "containers.conf"
        # runc and cgroupfs also run where cgroups are a hybrid tree and systemd is absent; limits may not be raised there.
        settings.write_text('[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
                            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
                            f'[network]\nnetwork_backend = "cni"\nnetwork_config_dir = "{directory}/networks"\n')
        # Health checks are systemd timers; the test asks the probes itself.
        self.environment = dict(os.environ, CONTAINERS_CONF=str(settings), DISABLE_HC_SYSTEMD="true")
        self.command = ["podman", "--root", directory / "s", "--runroot", directory / "r", "--tmpdir", directory / "t"]
        self.network = "meshrun-" + directory.name
        undo.callback(self.clear, directory)
        self("network", "create", "--subnet", f"{SUBNET}.0/24", self.network)

    def __call__(self, *words, **options):
        return run([*self.command, *words], env=self.environment, **options)

    def clear(self, directory):
        self("pod", "rm", "--all", "--force", "--time", "0", quiet=True)
        self("network", "prune", "--force", quiet=True)
        self("rmi", "--all", "--force", quiet=True)
        mounted = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        for path in sorted((path for path in mounted if path.startswith(f"{directory}/")), reverse=True):
            run(["umount", "--lazy", path], quiet=True)


def own(path):
    """For the user that the pods run as: podman knows no fsGroup."""
    for entry in [path, *path.rglob("*")]:
        os.chown(entry, USER, USER)
    return path


class Pod:
    """One replica of a StatefulSet."""

    def __init__(self, stateful_set, ordinal, address):
        self.name = f"{stateful_set['metadata']['name']}-{ordinal}"
        self.address = address
        self.set, self.template = stateful_set, copy.deepcopy(stateful_set["spec"]["template"])
        self.spec = self.template["spec"]
        self.main, = self.spec["containers"]
        self.container = f"{self.name}-{self.main['name']}"

    def names(self, services):
        """What the cluster's DNS would answer with this pod's address."""
        own_service = self.set["spec"]["serviceName"]
        chosen = [name for name, service in services.items() if service.get("clusterIP") != "None"
                  and service["selector"].items() <= self.template["metadata"]["labels"].items()]
        return [self.name, f"{self.name}.{own_service}", *chosen]


class Pods:
    """The pods of these documents. secrets: a directory for each Secret's name."""

    def __init__(self, podman, directory, documents, secrets):
        self.podman, self.directory, self.secrets = podman, directory, secrets
        self.services = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "Service"}
        sets = [d for d in documents if d["kind"] == "StatefulSet"]
        replicas = [(one, ordinal) for one in sets for ordinal in range(one["spec"]["replicas"])]
        self.pods = {}
        for number, (one, ordinal) in enumerate(replicas, 10):
            pod = Pod(one, ordinal, f"{SUBNET}.{number}")
            self.pods[pod.name] = pod

    def of(self, name):
        """The pods of one StatefulSet."""
        return [pod for pod in self.pods.values() if pod.set["metadata"]["name"] == name]

    def volume(self, pod, name):
        """Where this volume of a pod is on this host."""
        return self.directory / "volumes" / pod.name / name

    def start(self):
        """All of them; returns when each is ready."""
        for pod in self.pods.values():
            file = self.directory / f"{pod.name}.yaml"
            file.write_text(json.dumps(self._manifest(pod), indent=1))
            self.podman("kube", "play", "--network", self.podman.network, "--ip", pod.address, file)
        self.await_ready(*self.pods.values())

    def await_ready(self, *pods, seconds=60):
        """Asks each what its readiness probe asks."""
        end = time.monotonic() + seconds
        for pod in pods:
            command = [*self.podman.command, "exec", pod.container, *pod.main["readinessProbe"]["exec"]["command"]]
            while True:
                done = subprocess.run([str(word) for word in command], env=self.podman.environment, text=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                if done.returncode == 0:
                    break
                if time.monotonic() > end:
                    log = last_line(self.podman("logs", "--tail", "3", pod.container, quiet=True))
                    raise Missing(f"{pod.name} is not ready: {last_line(done.stdout)}; its log ends: {log}")
                time.sleep(0.2)

    def process(self, pod):
        """Its first process, by the number that this host knows it by; 0 where there is none."""
        return int(self.podman("inspect", "--format", "{{.State.Pid}}", pod.container))

    def stop(self, pod):
        """Within its grace, as the kubelet does. Returns its exit code."""
        self.podman("pod", "stop", "--time", pod.spec["terminationGracePeriodSeconds"], pod.name)
        return int(self.podman("inspect", "--format", "{{.State.ExitCode}}", pod.container))

    def start_again(self, pod):
        self.podman("pod", "start", pod.name)

    def down(self, *sets):
        """Stops the pods of these StatefulSets, one after the other, each of which is to exit 0; removes all."""
        for pod in (pod for name in sets for pod in self.of(name)):
            if code := self.stop(pod):
                log = self.podman("logs", "--tail", "3", pod.container, quiet=True)
                raise Missing(f"{pod.name} exited {code} on SIGTERM; its log ends: {' | '.join(log.splitlines())}")
        self.podman("pod", "rm", "--force", "--time", "0", *self.pods)

    def _manifest(self, pod):
        """The pod that the set's controller would make, as far as podman can hold it."""
        spec = pod.spec
        spec["hostname"] = pod.name
        spec["hostAliases"] = [{"ip": each.address, "hostnames": each.names(self.services)} for each in self.pods.values()]
        claims = [claim["metadata"]["name"] for claim in pod.set["spec"].get("volumeClaimTemplates", [])]
        volumes = [{"name": name, "hostPath": {"path": str(self._made(pod, name)), "type": "Directory"}} for name in claims]
        for volume in spec["volumes"]:
            if "secret" in volume:
                path = self.secrets[volume["secret"]["secretName"]]
            elif "emptyDir" in volume:
                path = self._made(pod, volume["name"])
            volumes.append({"name": volume["name"], "hostPath": {"path": str(path), "type": "Directory"}})
        spec["volumes"] = volumes
        # podman would publish them on this host, where two workers meet.
        pod.main.pop("ports")
        # Kubernetes puts variables into arguments; podman 4.3 passes them as they stand.
        fields = {e["name"]: pod.name for e in pod.main["env"]
                  if e.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") == "metadata.name"}
        pod.main["args"] = [re.sub(r"\$\((\w+)\)", lambda found: fields[found[1]], a) for a in pod.main["args"]]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod.name, "labels": pod.template["metadata"]["labels"]},
                "spec": spec}

    def _made(self, pod, name):
        path = self.volume(pod, name)
        path.mkdir(parents=True)
        return own(path)
