"""Item 1, third part: requests as large as a caller can make them, and stores as full as a job can fill them."""

import base64
import pathlib
import time

from harness import check, lenient, skip_soak, wait_until
from many_users_items.faults import fault
from many_users_items.hostile_peers import memory_of
from many_users_items.plain_calls import Connection, field
from many_users_items.shared_cluster import Others, SharedCluster

MIB = 1 << 20
# google.rpc.Code
OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 0, 3, 5, 8
# As proto/meshrun/v1/job_service.proto bounds them.
MOST_RANKS, MOST_POSITIONS, MOST_OF_A_REASON = 65_536, 131_072, 4096


def calls(cluster, name, requests, at_once=1, seconds=120):
    """As cluster.calls, and those for which there is no room are repeated, as clients do."""
    answers, left, until = [None] * len(requests), list(range(len(requests))), time.monotonic() + seconds
    while left:
        for i, answer in zip(left, cluster.calls(name, [requests[i] for i in left], at_once), strict=True):
            answers[i] = answer
        left = [i for i in left if answers[i]["code"] == RESOURCE_EXHAUSTED and "; try again" in answers[i]["message"]]
        check(not left or time.monotonic() < until, f"refused for {seconds} s: {answers[left[0]]['message'] if left else ''}")
        time.sleep(0.1 if left else 0)
    return answers


def call(cluster, name, method, request):
    return calls(cluster, name, [(method, request)])[0]


def refused(answer, what):
    check(answer["code"] == INVALID_ARGUMENT and answer["message"] == what, f"code {answer['code']}: {answer['message']}")


def of_process(process, file, name):
    """The number in a line of /proc/PID/FILE."""
    text = pathlib.Path(f"/proc/{process.pid}/{file}").read_text()
    return int(text.split(f"{name}:")[1].split()[0])


def running_jobs(cluster, count):
    """Jobs of bob's on n1 that stay; returns the fence of each as a request has it."""
    jobs = [cluster.submit("bob", [], "sleep", 1000) for _ in range(count)]
    for job_id in jobs:
        cluster.wait_state(job_id, "RUNNING", 20)
    node_id = cluster.node("n1")["nodeId"]
    return [{"jobId": job_id, "generation": cluster.job(job_id)["generation"], "nodeId": node_id} for job_id in jobs]


def bytes_of(fence):
    """The fence as the first field of a request."""
    return field(1, field(2, fence["jobId"]) + field(3, int(fence["generation"])) + field(5, fence["nodeId"]))


@fault("ReadLogs with 100,000 ranks and positions")
def many_ranks(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    job_id = cluster.submit("bob", ["--nproc-per-node", 4], "sh", "-c", "echo $RANK")
    cluster.succeeds([job_id])
    before = memory_of(cluster.coordinator)

    def read(ranks, positions=()):
        return call(cluster, "bob", "ReadLogs", {"jobId": job_id, "ranks": list(ranks), "positions": [
            {"rank": rank, "stream": stream} for rank, stream in positions]})

    with Others(cluster) as others:
        refused(read(range(100_000), ((i, 1) for i in range(100_000))), f"ranks has 100000 items, and at most {MOST_RANKS} are taken")
        refused(read([0], ((i, 1) for i in range(MOST_POSITIONS + 1))),
                f"positions has {MOST_POSITIONS + 1} items, and at most {MOST_POSITIONS} are taken")
        foreign = read(range(3000))
        check(foreign["code"] == NOT_FOUND and "has ranks 0 to 3, not 4" in foreign["message"], foreign)
        # Ranks that are named several times are read once.
        for ranks, positions, parts in (([0] * 3000, (), 1),
                                        ([i % 4 for i in range(MOST_RANKS)], [(i % 4, 1 + i // 4 % 2) for i in range(MOST_POSITIONS)], 4)):
            answer = read(ranks, positions)
            check(answer["code"] == OK and answer["responses"] == parts, f"{len(ranks)} ranks: {answer}")
    more = memory_of(cluster.coordinator) - before
    check(more < 256 * MIB, f"the coordinator grew by {more >> 20} MiB")
    check(not cluster.events(kind="NodeLost") and not cluster.events(kind="NodeSuspect"), "the worker's session was cut")
    cluster.succeeds([cluster.submit("ada", [], "true")])
    return (f"beyond the bounds refused, {MOST_RANKS:,} ranks with {MOST_POSITIONS:,} positions answered in {answer['seconds']:.2f} s; "
            f"{others}; {more >> 20} MiB more")


@fault("a cancel with a reason of 20 MiB")
def long_reason(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    job_id = cluster.submit("bob", ["--hold"], "true")
    before = memory_of(cluster.coordinator)
    with Others(cluster) as others:
        for size in (20 * MIB, MOST_OF_A_REASON + 1):
            refused(call(cluster, "bob", "CancelJob", {"jobId": job_id, "reason": "x" * size}),
                    f"reason has {size} bytes, and at most {MOST_OF_A_REASON} are taken")
        check(cluster.job(job_id)["state"] == "JOB_STATE_QUEUED", "a refused cancel cancels")
        # By the command, and with characters of several bytes.
        reason = "ä" * (MOST_OF_A_REASON // 2)
        code, _, err, _ = cluster.run("bob", "cancel", "--reason", reason, job_id)
        check(code == 0, f"a reason of {MOST_OF_A_REASON} bytes: exit code {code}: {err.strip()[-300:]}")
        times = {}
        for words in (("events",), ("events", "-o", "json"), ("describe",), ("describe", job_id), ("why", job_id), ("audit",),
                      ("audit", "-o", "json"), ("ps", "--all"), ("usage", "--by", "job")):
            code, out, err, seconds = cluster.run("client", *words)
            check(code == 0 and out, f"{' '.join(words)} exited {code}: {err.strip()[-300:]}")
            times[" ".join(words)] = seconds
    more = memory_of(cluster.coordinator) - before
    job = cluster.job(job_id)
    check(job["state"] == "JOB_STATE_CANCELLED" and reason in job["reason"], f"{job['state']}: {job['reason'][:100]}")
    check(more < 128 * MIB, f"the coordinator grew by {more >> 20} MiB")
    slowest = max(times, key=times.get)
    return (f"refused by its field; after one of {MOST_OF_A_REASON} bytes {slowest} takes {times[slowest]:.2f} s, the most of "
            f"{len(times)} commands; {others}; {more >> 20} MiB more")


@fault("thousands of appends to one key of a job's store", alone=True)
def appends(site):
    count, size = (4000, 1024) if skip_soak() else (16_000, 1024)
    cluster = SharedCluster(site)
    cluster.add("n1")
    [fence] = running_jobs(cluster, 1)
    before = memory_of(cluster.coordinator)
    written, read = (of_process(cluster.coordinator, "io", name) for name in ("wchar", "rchar"))
    value = base64.b64encode(b"a" * size).decode()
    with Others(cluster) as others:
        began = time.monotonic()
        answers = calls(cluster, "n1", [("AppendValue", {"fence": fence, "key": "k", "value": value, "requestId": f"r{i}"})
                                        for i in range(count)], at_once=24)
        seconds = time.monotonic() - began
    failed = [answer for answer in answers if answer["code"] != OK]
    check(not failed, f"{len(failed)} of {count} appends failed: {failed[0]['message'] if failed else ''}")
    written, read = of_process(cluster.coordinator, "io", "wchar") - written, of_process(cluster.coordinator, "io", "rchar") - read
    more = memory_of(cluster.coordinator) - before
    with Connection(cluster, "n1") as connection:
        answer, _ = connection.call("StoreService/GetValues", bytes_of(fence) + field(2, "k"))
    check(answer == field(1, b"a" * (count * size)), f"the value has {len(answer or b'')} bytes")
    # A transaction of one append writes some pages of 4 KiB, to the log and from there to the database.
    check(written <= 64 * count * size, f"{count} appends of {size} bytes wrote {written >> 20} MiB")
    return (f"{count:,} of them, {count * size / MIB:.1f} MiB, in {seconds:.1f} s: {written >> 20} MiB written, {read >> 20} MiB read; "
            f"{others}; {more >> 20} MiB more{'; 16,000 in the soak run' if skip_soak() else ''}")


def restart(cluster):
    """kill -9. Returns the seconds until it answers, and its most memory in MiB by then."""
    address = cluster.site.env["MESHRUN_COORDINATOR"]
    cluster.kill_coordinator()
    began = time.monotonic()
    cluster.start_coordinator(address=address)
    cluster.ask("nodes")
    seconds = time.monotonic() - began
    wait_until(lambda: cluster.node("n1").get("state") == "NODE_STATE_HEALTHY", 30, "n1 is back")
    most = of_process(cluster.coordinator, "status", "VmHWM") >> 10
    check(seconds < 20, f"it answered {seconds:.1f} s after its start")
    check(most < 2048, f"it took {most} MiB to start")
    return seconds, most


@fault("the stores of four jobs as full as they may be, and a coordinator that is killed", alone=True)
def full_stores(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    # The certificate of all nodes is the one without limits for each caller.
    cluster.issue("all", "--role", "worker", "--node", "*")
    fences = running_jobs(cluster, 4)
    before = memory_of(cluster.coordinator)
    size, held, refusals = 15 * MIB, [], set()
    value = lambda job, i: bytes([16 * job + i]) * size
    with Others(cluster) as others, Connection(cluster, "all") as connection:
        for i in range(2 if skip_soak() else 16):
            for job, fence in enumerate(fences):
                request = bytes_of(fence) + field(2, field(1, f"k{i}") + field(2, value(job, i))) + field(3, f"r{i}")
                answer, said = connection.call("StoreService/SetValues", request)
                if answer is None:
                    check(b"are allowed while other jobs store" in said, f"a value is refused: {said}")
                    refusals.add(job)
                else:
                    held.append((job, i))
    more, total = memory_of(cluster.coordinator) - before, len(held) * size
    check(skip_soak() or len(refusals) == 4, f"{len(refusals)} of 4 jobs were refused")
    check(total <= 512 * MIB, f"the jobs hold {total >> 20} MiB")
    seconds, most = restart(cluster)
    with Connection(cluster, "all") as connection:
        for job, i in held:
            answer, said = connection.call("StoreService/GetValues", bytes_of(fences[job]) + field(2, f"k{i}"))
            check(answer == field(1, value(job, i)), f"value {i} of job {job} is lost: {said}")
    check(all(cluster.job(fence["jobId"])["state"] == "JOB_STATE_RUNNING" for fence in fences), "a job does not run any more")
    full = "each job refused more" if refusals else "until they are full in the soak run"
    return (f"{len(held)} values of 15 MiB, {total >> 20} MiB in all, {full}; {others}; {more >> 20} MiB more; "
            f"after kill -9 it answers within {seconds:.1f} s with {most} MiB at most, and has all values")


@fault("answers of large values, which a store keeps for retries")
def kept_answers(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    fences = running_jobs(cluster, 4)
    before = memory_of(cluster.coordinator)
    sent = 0
    with Others(cluster) as others, Connection(cluster, "n1") as connection:
        for fence in fences:
            requests = [("SetValues", field(2, field(1, "k") + field(2, bytes(1000 << 10))) + field(3, "r"))]
            # The answer is the value, since that is not the expected one, which is empty.
            requests += [("CompareSetValue", field(2, "k") + field(5, f"r{i}")) for i in range(64)]
            for method, request in requests:
                answer, said = connection.call(f"StoreService/{method}", bytes_of(fence) + request)
                check(answer is not None, f"{method}: {said}")
                sent += len(request)
    more, state = memory_of(cluster.coordinator) - before, (cluster.state / "state.sqlite").stat().st_size
    check(more < 128 * MIB and state < 128 * MIB, f"{sent >> 20} MiB of requests: {more >> 20} MiB more, {state >> 20} MiB of state")
    seconds, most = restart(cluster)
    return (f"{len(requests) * len(fences)} answers for {sent >> 20} MiB of requests: {more >> 20} MiB more, {state >> 20} MiB of state; "
            f"{others}; after kill -9 it answers within {seconds:.1f} s with {most} MiB at most")


@fault("2,000 small keys beside a large value", alone=True)
def many_keys(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    [fence] = running_jobs(cluster, 1)
    entries = lambda values: b"".join(field(2, field(1, key) + field(2, value)) for key, value in values)
    with Connection(cluster, "n1") as connection:
        answer, said = connection.call("StoreService/SetValues", bytes_of(fence) + entries([("m", bytes(15 * MIB))]))
        check(answer is not None, f"a value is refused: {said}")
        read, written = (of_process(cluster.coordinator, "io", name) for name in ("rchar", "wchar"))
        with Others(cluster) as others:
            began = time.monotonic()
            # On both sides of the large one.
            keys = [f"{'az'[i % 2]}{i}" for i in range(2000)]
            answer, said = connection.call("StoreService/SetValues", bytes_of(fence) + entries((key, bytes(100)) for key in keys))
            seconds = time.monotonic() - began
            check(answer is not None, f"small values are refused: {said}")
            cluster.run("bob", "cancel", "--now", fence["jobId"])
            cluster.wait_state(fence["jobId"], "CANCELLED", 20)
    read, written = of_process(cluster.coordinator, "io", "rchar") - read, of_process(cluster.coordinator, "io", "wchar") - written
    # Not with each of them the large one.
    check(read < 256 * MIB, f"{read >> 20} MiB were read")
    check(seconds < lenient(2), f"they took {seconds:.1f} s")
    return f"set in {seconds:.2f} s; with the end of the job {read >> 20} MiB read, {written >> 20} MiB written; {others}"
