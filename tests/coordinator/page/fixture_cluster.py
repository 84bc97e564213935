"""A cluster that exists only as the answers of the JSON API: the page's test double, for what no machine of tests can run (100 jobs, 1,000
ranks) and for coordinators that go away. Each answer has the form of recorded/answers.json, which real programs printed."""

import copy
import datetime
import json
import pathlib
import threading
import time

RECORDED = json.loads(pathlib.Path(__file__).with_name("recorded").joinpath("answers.json").read_text())
HELD = "held: 'meshrun release' lets it go on"
ENDED = {"JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"}
MAY = {
    "read": ["DescribeCluster", "GetFlightRecords", "GetJob", "ListEvents", "ListJobs", "ListNodes", "ReadLogs", "ReadPictures",
             "WatchJob"],
    "operate": ["CancelJob", "DescribeCluster", "DrainNode", "GetFlightRecords", "GetJob", "GetStacks", "ListEvents", "ListJobs",
                "ListNodes", "ReadLogs", "ReadPictures", "UndrainNode", "UpdateJob", "WatchJob"],
}
MAY["submit"] = [method for method in MAY["operate"] if "Node" not in method or method == "ListNodes"]


def now_text(seconds_ago=0.0):
    at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=seconds_ago)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Job:
    """A job with what the API tells of it beside the job itself."""

    def __init__(self, view):
        self.view = view
        self.events = []
        self.curve = []
        self.pieces = []
        self.offsets = {}
        self.changed_ranks = set()

    @property
    def ended(self):
        return self.view["state"] in ENDED


class Cluster:
    """All of it stands under one lock; `changed` is notified at each change."""

    def __init__(self, nodes=2, slots=4, gpus=0):
        self.changed = threading.Condition(threading.RLock())
        self.jobs = {}
        self.events = []
        self.sequence = 0
        self.about = copy.deepcopy(RECORDED["cluster"])
        self.about["startedAt"] = now_text()
        self.about["coordinators"] = []
        self.nodes = [self._node(i, slots, gpus) for i in range(nodes)]
        self.event("CoordinatorStarted", "term 1")

    def _node(self, i, slots, gpus):
        node = copy.deepcopy(RECORDED["node"])
        models = [{"index": g, "uuid": f"GPU-{i}-{g}", "model": "H200", "memoryBytes": 150 << 30} for g in range(gpus)]
        node.update(nodeId=f"node-{i:04d}", name=f"worker-{i + 1}", slotsUsed=0, registeredAt=now_text(), lastSeenAt=now_text())
        node["resources"].update(slots=slots, gpus=models)
        return node

    def event(self, kind, message, job="", node="", role="FACT", cause=0, actor=""):
        with self.changed:
            self.sequence += 1
            event = dict(RECORDED["event"], sequence=self.sequence, at=now_text(), kind=kind, message=message, jobId=job, nodeId=node,
                         role=f"EVENT_ROLE_{role}", cause=cause, actor=actor)
            self.events.append(event)
            if job:
                self.jobs[job].events.append(event)
            self.changed.notify_all()
            return self.sequence

    def submit(self, name, nodes=2, procs=2, mesh=(), user="jo", hold=False, reason="", **spec):
        with self.changed:
            job_id = f"{name}-{len(self.jobs):04d}"
            view = copy.deepcopy(RECORDED["job"])
            view["spec"].update(name=name, minNodes=nodes, maxNodes=nodes, procsPerNode={"count": procs}, hold=hold, priority=0,
                                mesh=[{"name": axis, "size": size} for axis, size in mesh], **spec)
            view.update(jobId=job_id, submitter=user, submittedAt=now_text(), reason=reason or (HELD if hold else ""))
            self.jobs[job_id] = Job(view)
            self.event("JobSubmitted", "submitted", job_id, actor=user)
            return job_id

    def start(self, job_id):
        """A generation of it runs."""
        with self.changed:
            job = self.jobs[job_id]
            spec = job.view["spec"]
            procs = spec["procsPerNode"]["count"]
            world = spec["minNodes"] * procs
            job.view.update(state="JOB_STATE_RUNNING", reason="", generation=job.view["generation"] + 1, worldSize=world, mesh=spec["mesh"],
                            startedAt=job.view.get("startedAt") or now_text(), runningSince=now_text(), masterAddr="10.0.0.1",
                            masterPort=22240)
            job.view["ranks"] = [self._rank(job, rank, procs) for rank in range(world)]
            for node in self.nodes[:spec["minNodes"]]:
                node["slotsUsed"] = min(node["resources"]["slots"], node["slotsUsed"] + procs)
            shape = f"{world} ranks on {spec['minNodes']} nodes"
            self.event("JobAdmitted", f"generation {job.view['generation']}: {shape}", job_id)
            self.event("GenerationStarted", f"generation {job.view['generation']} runs {shape}", job_id)

    def _rank(self, job, rank, procs):
        out = copy.deepcopy(RECORDED["running"]["ranks"][0])
        del out["progress"]
        node = self.nodes[rank // procs]
        coordinates, rest = [], rank
        for axis in reversed(job.view["mesh"]):
            coordinates.insert(0, rest % axis["size"])
            rest //= axis["size"]
        out["assignment"].update(rank=rank, localRank=rank % procs, nodeRank=rank // procs, nodeId=node["nodeId"],
                                 meshCoordinates=coordinates, processGeneration=job.view["generation"], processRank=rank)
        out.update(nodeName=node["name"], pid=4000 + rank)
        return out

    def report(self, job_id, step, total=None, loss=None, waited=None, lag=None, point=True, **metrics):
        """All ranks report a step. waited, lag: by rank, seconds in all and steps."""
        with self.changed:
            job = self.jobs[job_id]
            if job.ended:
                return
            progress = {"step": step, "metrics": metrics, "note": ""}
            if total:
                progress["totalSteps"] = total
            if loss is not None:
                progress["loss"] = loss
            for rank in job.view["ranks"]:
                number = rank["assignment"]["rank"]
                rank["progress"] = dict(progress, step=step - (lag or {}).get(number, 0), waitedSeconds=(waited or {}).get(number, 0.0),
                                        stepAtNanos=time.monotonic_ns())
            job.view["progress"] = dict(progress)
            if point:
                job.curve.append({"at": now_text(), "step": step, **({} if loss is None else {"loss": loss}), "metrics": metrics})
            self._touch(job)

    def log(self, job_id, rank, text, stream="LOG_STREAM_STDOUT"):
        with self.changed:
            job = self.jobs[job_id]
            if job.ended:
                return
            key = (rank, stream)
            offset = job.offsets.get(key, 0)
            job.pieces.append({"rank": rank, "stream": stream, "generation": job.view["generation"], "offset": offset, "dropped": 0,
                               "text": text})
            job.offsets[key] = offset + len(text.encode())
            self.changed.notify_all()

    def straggle(self, job_id, rank, computes=0.2, median=0.08):
        with self.changed:
            job = self.jobs[job_id]
            node = job.view["ranks"][rank]["nodeName"]
            job.view["stragglers"] = [dict(RECORDED["straggler"], rank=rank, nodeName=node, computesSeconds=computes,
                                           medianSeconds=median, stepSeconds=computes)]
            what = f"rank {rank} on {node} computes {computes:g} s of each step, the median of all ranks is {median:g} s"
            self.event("StragglerFound", what, job_id)
            self._touch(job)

    def kill(self, job_id, rank, lines=(), signal=9):
        """The rank dies, the others are stopped, the job fails."""
        with self.changed:
            job = self.jobs[job_id]
            node = job.view["ranks"][rank]["nodeName"]
            message = f"rank {rank} on {node} was killed by signal {signal} (SIGKILL)"
            for one in job.view["ranks"]:
                number = one["assignment"]["rank"]
                first = number == rank
                exit_ = dict(RECORDED["exit"], rank=number, signal=signal if first else 15, teardown=not first,
                             lastLines=list(lines) if first else [], errorMessage="", at=now_text())
                exit_.pop("exitCode", None)
                end = f"killed by signal {signal} (SIGKILL)" if first else "killed by signal 15 (SIGTERM)"
                one.update(state="RANK_STATE_EXITED", exit=exit_, end=end)
                job.changed_ranks.add(number)
            job.view["failure"] = dict(RECORDED["failure"], cause="FAILURE_CAUSE_RANK_SIGNALED", message=message, rank=rank, nodeName=node,
                                       exit=job.view["ranks"][rank]["exit"], generation=job.view["generation"])
            cause = self.event("RankFailed", message, job_id, role="CAUSE")
            self._end(job, "FAILED", message)
            self.event("JobFailed", message, job_id, role="ACTION", cause=cause)

    def restart(self, job_id, message, nodes=None):
        """The generation fails, and another one runs, on so many nodes."""
        with self.changed:
            job = self.jobs[job_id]
            cause = self.event("RankFailed", message, job_id, role="CAUSE")
            self.event("JobRestarting", "restarts", job_id, role="ACTION", cause=cause)
            job.view.pop("progress", None)
            job.view["spec"]["minNodes"] = nodes or job.view["spec"]["minNodes"]
            self.start(job_id)
            self._touch(job)

    def succeed(self, job_id):
        with self.changed:
            job = self.jobs[job_id]
            for one in job.view["ranks"]:
                one.update(state="RANK_STATE_EXITED", end="ended with exit code 0")
                job.changed_ranks.add(one["assignment"]["rank"])
            self._end(job, "SUCCEEDED", "")
            self.event("JobSucceeded", "succeeded", job_id)

    def cancel(self, job_id, reason="", actor="jo"):
        with self.changed:
            job = self.jobs[job_id]
            if job.ended:
                return
            cause = self.event("CancelRequested", f"cancel asked for{': ' + reason if reason else ''}", job_id, role="CAUSE", actor=actor)
            for one in job.view["ranks"]:
                one.update(state="RANK_STATE_EXITED", end="killed by signal 15 (SIGTERM)")
                job.changed_ranks.add(one["assignment"]["rank"])
            self._end(job, "CANCELLED", f"cancelled{': ' + reason if reason else ''}")
            self.event("JobCancelled", reason or "cancelled", job_id, role="ACTION", cause=cause)

    def hold(self, job_id, held):
        with self.changed:
            job = self.jobs[job_id]
            job.view["spec"]["hold"] = held
            job.view["reason"] = HELD if held else ""
            self.event("JobHeld" if held else "JobReleased", "held" if held else "released", job_id)
            self._touch(job)

    def drain(self, name, reason, drained):
        with self.changed:
            node = next(one for one in self.nodes if name in (one["name"], one["nodeId"]))
            node.update(drained=drained, drainedBecause=reason)
            what = "drained" if drained else "undrained"
            self.event(f"Node{what.title()}", f"{node['name']} {what}", node=node["nodeId"])
            return node

    def _end(self, job, state, reason):
        began = job.view.pop("runningSince", None)
        if began:
            job.view["runTime"] = f"{time.time() - datetime.datetime.fromisoformat(began.replace('Z', '+00:00')).timestamp():.3f}s"
            for node in self.nodes:
                node["slotsUsed"] = max(0, node["slotsUsed"] - job.view["spec"]["procsPerNode"]["count"])
        job.view.update(state=f"JOB_STATE_{state}", reason=reason, finishedAt=now_text(), stragglers=[])
        self._touch(job)

    def _touch(self, job):
        job.view["revision"] += 1
        self.changed.notify_all()

    # Answers of the API.

    def describe(self, events):
        with self.changed:
            active = sum(not job.ended for job in self.jobs.values())
            healthy = sum(node["state"] == "NODE_STATE_HEALTHY" for node in self.nodes)
            return dict(self.about, now=now_text(), events=self.events[-events:], nodesHealthy=healthy, nodesTotal=len(self.nodes),
                        jobsActive=active, jobsTotal=len(self.jobs))

    def list_nodes(self):
        with self.changed:
            for node in self.nodes:
                node["lastSeenAt"] = now_text(0.4)
            return {"nodes": copy.deepcopy(self.nodes), "nextPageToken": ""}

    def list_jobs(self, query):
        states = query.get("state", [])
        with self.changed:
            user = query.get("user", [""])[0]
            chosen = [job for job in reversed(self.jobs.values()) if (not states or job.view["state"] in states)
                      and (not query.get("activeOnly") or not job.ended) and user in ("", job.view["submitter"])]
            if query.get("runningFirst"):
                chosen.sort(key=lambda job: (job.ended, job.view["worldSize"] == 0))
            size = int(query.get("pageSize", ["100"])[0])
            first = int(query.get("pageToken", ["0"])[0])
            page = [dict(job.view, ranks=[], groups=[]) for job in chosen[first:first + size]]
            return {"jobs": page, "nextPageToken": str(first + size) if len(chosen) > first + size else ""}

    def get_job(self, job_id, first, most):
        with self.changed:
            job = self.jobs[job_id]
            ranks = copy.deepcopy(job.view["ranks"][first:first + most])
            following = first + most if first + most < len(job.view["ranks"]) else 0
            # The rest comes with the first rank.
            events, curve = ([], []) if first else (list(job.events), list(job.curve))
            return {"job": dict(job.view, ranks=ranks), "events": events, "nextRank": following, "curve": curve}
