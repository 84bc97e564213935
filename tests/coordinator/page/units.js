// Tests of the page's modules, run in a browser by tests/acceptance/operations_items/page.py.
// Each is named after the rule that it holds.

import {attention} from "/model/attention.js";
import {capacity} from "/model/capacity.js";
import {consequences, generations, incidentOf, incidents} from "/model/causes.js";
import {quote, submitCommand} from "/model/command.js";
import {coverage, restText, verdict} from "/model/coverage.js";
import {logTicks, pieces, pointsOf, segments, seriesNames, ticks} from "/model/curves.js";
import {fold, MOST_POINTS} from "/model/fold.js";
import {apiDuration, formatBytes, formatDuration, formatNumber, formatRate} from "/model/format.js";
import {LogBuffer, MOST_LINES} from "/model/log_buffer.js";
import {formatRanks, parseRanks} from "/model/ranks.js";
import {routeOf} from "/model/route.js";
import {EventParser} from "/model/sse.js";
import {leftOut, mergeStacks} from "/model/stacks.js";
import {FailedJobs} from "/net/failed_jobs.js";
import {poll} from "/net/poll.js";
import {openStream} from "/net/stream.js";
import {Curve} from "/ui/curve.js";
import {JobStacks} from "/views/job/stacks.js";

import {speedRules} from "./units_speed.js";
import {equal, rank} from "./units_tools.js";

const event = (sequence, kind, more = {}) => ({
  sequence,
  kind,
  jobId: "j",
  at: `2026-11-30T10:00:${String(sequence).padStart(2, "0")}Z`,
  message: kind,
  role: "EVENT_ROLE_FACT",
  cause: 0,
  ...more
});
const piece = (offset, text, more = {}) =>
    ({rank: 0, stream: "LOG_STREAM_STDOUT", generation: 1, offset, dropped: 0, text, ...more});

// After all that is ready to run now.
const turn = () => new Promise((resolve) => {
  setTimeout(resolve);
});

// Until nothing moves any more: locks are granted by another process.
async function settled(condition) {
  const end = performance.now() + 2000;
  while (!condition() && performance.now() < end) await turn();
  for (let i = 0; i < 20; i += 1) await turn();
}

// Runs `act` while [[object, property, value]] stand in place of what is there.
async function replacing(values, act) {
  const before = values.map(([object, name]) => Object.getOwnPropertyDescriptor(object, name));
  for (const [object, name, value] of values)
    Object.defineProperty(object, name, {value, configurable: true, writable: true});
  try {
    await act();
  } finally {
    values.forEach(([object, name], i) => {
      delete object[name];
      if (before[i]) Object.defineProperty(object, name, before[i]);
    });
  }
}

const tests = {
  ...speedRules,
  aDeltaLeavesWhatItDoesNotName() {
    const first = fold(null, {
      job: {state: "A", spec: {name: "x"}, groups: [1], ranks: [rank(0, 3), rank(1, 3)]},
      curve: [{step: 1}]
    });
    const next = fold(first, {
      delta: {
        head: {state: "B"},
        ranks: [{...rank(1, null), state: "RANK_STATE_EXITED", progress: undefined}],
        groups: [],
        hasGroups: false
      },
      curve: [{step: 2}]
    });
    equal(next.job.state, "B", "state");
    equal(next.job.spec.name, "x", "spec");
    equal(next.job.groups, [1], "groups");
    equal(
        [next.job.ranks[0].state, next.job.ranks[1].state],
        ["RANK_STATE_RUNNING", "RANK_STATE_EXITED"], "ranks");
    equal(next.job.ranks[1].progress.step, 3, "progress of a rank that ended");
    equal(next.curve.map((point) => point.step), [1, 2], "curve");
  },
  aWholeJobReplacesAllButPointsThatAreKnown() {
    const at = (second) => `2026-11-30T10:00:0${second}Z`;
    const points = (...seconds) => seconds.map((second) => ({step: second, at: at(second)}));
    const known = {job: {state: "A"}, curve: points(1, 2, 3)};
    const after = (curve) => fold(known, {job: {state: "B"}, curve});
    const steps = (curve) => after(curve).curve.map((point) => point.step);
    equal(after([]).job.state, "B", "state");
    equal(steps(points(1, 3, 4)), [1, 2, 3, 4], "the same coordinator, which keeps fewer");
    equal(steps(points(4)), [1, 2, 3, 4], "another one");
    equal(steps([]), [1, 2, 3], "another one, before a report");
    const gap = {job: {state: "A"}, curve: points(1, 5)};
    equal(
        fold(gap, {job: {}, curve: points(1, 2, 4, 6)}).curve.map((point) => point.step),
        [1, 2, 4, 5, 6], "points that came while the connection was broken");
    equal(
        fold(known, {job: {}, curve: [{step: 1, at: at(4)}]}).curve.map((point) => point.step),
        [1, 2, 3, 1], "steps that went back");
  },
  anotherConnectionLosesNoPointOfALongCurve() {
    const point = (i) => ({step: i, at: new Date(i * 1000).toISOString()});
    let known = {job: {}, curve: []};
    for (let i = 0; i < 3000; i += 1) known = fold(known, {curve: [point(i)]});
    const kept = known.curve.filter((_, i) => i % 16 === 0);
    equal(fold(known, {job: {}, curve: kept}).curve.length, 3000, "points");
    const many = Array.from({length: MOST_POINTS}, (_, i) => point(i + 0.5));
    const both = fold(known, {job: {}, curve: many}).curve;
    if (both.length > MOST_POINTS) throw new Error(`${both.length} points`);
    if (both.some(({step}, i) => i > 0 && step <= both[i - 1].step)) throw new Error("out of order");
  },
  aCurveIsBoundedAndKeepsItsNewestPoints() {
    let known = {job: {}, curve: []};
    for (let i = 0; i < MOST_POINTS + 50; i += 1) known = fold(known, {curve: [{step: i}]});
    if (known.curve.length > MOST_POINTS) throw new Error(`${known.curve.length} points`);
    equal([known.curve[0].step, known.curve.at(-1).step], [0, MOST_POINTS + 49], "first and last");
  },
  aCurveHasAllReportsAndTheLossFirst() {
    const curve = [{step: 1, loss: 2, metrics: {b: 1, a: "NaN"}}, {step: 2, metrics: {a: 3}}];
    equal(seriesNames(curve), ["loss", "a", "b"], "names");
    equal(
        pointsOf(curve, "a").map((point) => [point.x, point.y]), [[1, "NaN"], [2, 3]], "points");
    equal(pointsOf(curve, "b").map((point) => [point.x, point.y]), [[1, 1]], "another's points");
  },
  aValueThatCannotBeDrawnBreaksTheLine() {
    const points = [1, 2, "NaN", 4, 5, "Infinity", "NaN"].map((y, x) => ({x, y}));
    const lengths = (isDrawn) => pieces(points, isDrawn).map((piece) => piece.length);
    equal(lengths(({y}) => typeof y === "number"), [2, 2], "numbers");
    equal(lengths(({y}) => typeof y === "number" && y > 1), [1, 2], "of them those above 1");
    equal(pieces([], () => true), [], "no point");
  },
  aCurvesReadingIsItsLastReportWhateverItIs() {
    const curve = new Curve("val_loss", 120);
    const at = "2026-11-30T10:00:00Z";
    const show = (...values) =>
        curve.update([{label: "j", points: values.map((y, i) => ({x: 100 * i, y, at}))}]);
    const lines = () => curve.canvas.querySelector(".curve-line")?.getAttribute("d") ?? "";
    const has = (what) => curve.element.querySelectorAll(what).length;
    document.body.append(curve.element);
    try {
      show(0.5, 0.41, "NaN", "NaN");
      equal(curve.reading.textContent, "NaN", "the reading");
      equal(curve.plot.getAttribute("aria-valuetext"), "step 300, val_loss NaN", "as read aloud");
      equal([lines().split("M").length - 1, /NaN/.test(lines())], [1, false], "the line");
      show(0.5, 0.41, "NaN", 0.4, 0.3);
      equal([curve.reading.textContent, lines().split("M").length - 1], ["0.3", 2], "a gap");
      equal(has(".curve-line.before"), 0, "and no line of before a restart");
      curve.plot.dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}));
      curve.plot.dispatchEvent(new KeyboardEvent("keydown", {key: "PageDown"}));
      curve.plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}));
      curve.plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}));
      equal(/^step 200: NaN, /.test(curve.reading.textContent), true, "the point in the gap");
      equal(curve.mark.lastChild.getAttribute("visibility"), "hidden", "its mark has no dot");
      show("NaN", "Infinity");
      equal(
          curve.canvas.textContent, "no finite number in 2 reports", "a curve without a number");
      curve.details.open = true;
      show("NaN", 0.4, "-Infinity");
      const cells = [...curve.table.tBodies[0].rows].map((row) => row.cells[1].textContent);
      equal(cells, ["NaN", "0.4", "-Infinity"], "the table");
    } finally {
      curve.element.remove();
    }
  },
  aRestartBeginsAnotherLine() {
    equal(
        segments([1, 2, 3, 2, 3].map((x) => ({x}))).map((part) => part.length), [3, 2], "segments");
  },
  ticksAreRound() {
    equal(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10], "linear");
    equal(logTicks(0.001, 10), [0.001, 0.01, 0.1, 1, 10], "logarithmic");
  },
  ticksOfARangeAsNarrowAsRoundingEnd() {
    equal(ticks(0.3, 0.1 + 0.2, 5), [0.3], "neighbours");
    equal(ticks(1e16, 1e16 + 2, 5), [1e16], "large neighbours");
    equal(ticks(0, 5e-324, 5), [0], "the least number");
    equal(ticks(-1.7e308, 1.7e308, 5), [-1.7e308], "a range that is no number");
    for (const range of [1e-13, 1e-12, 1e-11, 1e-9, 1e-3, 1e9]) {
      const found = ticks(0.3, 0.3 + range, 1000).length;
      if (found < 1 || found > 50) throw new Error(`${found} ticks over ${range}`);
    }
    equal(ticks(-3, 3, 5), [-3, -2, -1, 0, 1, 2, 3], "through 0");
    equal(ticks(-0.3, -0.1, 2), [-0.3, -0.2, -0.1], "below 0");
  },
  consequencesFollowTheirCause() {
    const events = [
      event(1, "NodeLost", {jobId: ""}),
      event(2, "RankFailed", {role: "EVENT_ROLE_CAUSE", cause: 1}),
      event(3, "JobRestarting", {role: "EVENT_ROLE_ACTION", cause: 2})
    ];
    const [one] = incidents(events);
    equal(
        [one.before.sequence, one.cause.sequence, one.actions.map((action) => action.sequence)],
        [1, 2, [3]], "incident");
    equal(
        consequences({
          ranks: [
            {assignment: {rank: 1}, exit: {teardown: true}, end: "killed"},
            {assignment: {rank: 0}, exit: {teardown: true}, end: "killed"}, rank(2, 1)
          ]
        }),
        [{end: "killed", ranks: [1, 0]}], "groups");
  },
  aGenerationEndsByItsFirstFailure() {
    const list = generations(
        [
          event(1, "JobAdmitted"), event(2, "GenerationStarted"),
          event(3, "RankFailed", {message: "rank 1 died"}),
          event(4, "JobRestarting", {message: "restarts"}), event(5, "JobAdmitted"),
          event(6, "GenerationStarted")
        ],
        2);
    equal(list.map((one) => [one.number, one.end]), [[1, "rank 1 died"], [2, ""]], "generations");
  },
  aGenerationThatIsFollowedByAnotherHasEnded() {
    const at = (seconds, kind, message = "") =>
        ({...event(seconds, kind, {message}), at: new Date(seconds * 1000).toISOString()});
    const list = generations(
        [
          at(1, "JobAdmitted"), at(2, "GenerationStarted"),
          at(6, "GoesOnInProcess", "grows from 1 to 2 ranks"), at(6, "JobAdmitted"),
          at(7, "GenerationStarted"), at(9, "JobRequeued", "moved away"), at(20, "JobAdmitted"),
          at(30, "JobAdmitted"), at(31, "GenerationStarted")
        ],
        4);
    equal(
        list.map((one) => [(one.ended - one.started) / 1000, one.end]),
        [[4, "grows from 1 to 2 ranks"], [2, "moved away"], [NaN, "given up before its start"], [
          NaN, ""
        ]],
        "generations");
    equal(list[2].ended, 30000, "the one that was never started");
  },
  theFailureIsShownWithWhatLedToIt() {
    const events = [
      event(1, "RankFailed", {role: "EVENT_ROLE_CAUSE", message: "rank 1 died"}),
      event(2, "JobMoved", {role: "EVENT_ROLE_CAUSE", message: "moved away"})
    ];
    equal(incidentOf({}, events).cause.message, "moved away", "nothing has failed");
    equal(
        incidentOf({failure: {message: "rank 1 died"}}, events).cause.message, "rank 1 died",
        "a move after it");
    equal(
        incidentOf({failure: {message: "no progress: rank 1 died"}}, events).cause.message,
        "rank 1 died", "a job without progress");
    for (const message of ["", "known to nobody"]) {
      equal(
          incidentOf({failure: {message}}, events).cause.message, "moved away",
          `the failure '${message}'`);
    }
    equal(incidentOf({failure: {message: "rank 1 died"}}, []), undefined, "events are forgotten");
  },
  aFailureThatFollowsFromACauseIsShownWithIt() {
    const after = (sequence, kind, cause, message) =>
        event(sequence, kind, {role: "EVENT_ROLE_CONSEQUENCE", cause, message});
    const done = (sequence, kind, cause, message) =>
        event(sequence, kind, {role: "EVENT_ROLE_ACTION", cause, message});
    const moved = event(9, "JobMoved", {role: "EVENT_ROLE_CAUSE", message: "moved away"});
    const found = (message, events) => {
      const {cause, consequences, actions} = incidentOf({failure: {message}}, [...events, moved]);
      return [cause.kind, consequences.length, actions.length];
    };
    equal(
        found(
            "no step for 30 s",
            [
              event(1, "HangSuspected", {role: "EVENT_ROLE_CAUSE", message: "no step for 10 s"}),
              after(2, "HangStacks", 1, "rank 1 stands in recv"),
              after(3, "RankHung", 1, "no step for 30 s"), done(4, "JobRestarting", 1, "")
            ]),
        ["HangSuspected", 2, 1], "a hang");
    equal(
        found(
            "rank 0 ended",
            [
              event(1, "RanksWaitInVain", {role: "EVENT_ROLE_CAUSE", message: "0 and 1 wait"}),
              after(2, "RankFailed", 1, "rank 0 ended"), done(3, "JobRestarting", 1, "restarts")
            ]),
        ["RanksWaitInVain", 1, 1], "a deadlock");
    equal(
        found(
            "n1: no disk",
            [
              event(1, "NodeFailed", {role: "EVENT_ROLE_CAUSE", message: "n2 is lost"}),
              done(2, "JobFailed", 1, "gave up: n1: no disk")
            ]),
        ["NodeFailed", 0, 1], "an end that repeats it");
  },
  theCommandRepeatsTheJob() {
    equal(quote("it's"), "'it'\\''s'", "quote");
    equal(
        submitCommand({
          name: "a",
          minNodes: 1,
          maxNodes: 4,
          procsPerNode: {gpu: true},
          mesh: [{name: "dp", size: -1}],
          env: {KEY: ""},
          command: ["./train", "--data", "my file"],
          maxRestarts: 2,
          numaBinding: "NUMA_BINDING_CORE_COMPLEX",
          growth: "GROWTH_AT_ONCE"
        }),
        "meshrun submit --name a --nodes 1:4 --procs-per-node gpu --mesh dp=-1 --env KEY --max-restarts 2 --grow at-once --numa-binding core-complex " +
            "-- ./train --data 'my file'",
        "command");
  },
  piecesOfALogJoinToLines() {
    const log = new LogBuffer();
    log.add(piece(0, "one\ntw"));
    log.add(piece(6, "o\n"));
    equal(log.lines.map((line) => line.text), ["one", "two"], "lines");
  },
  whatAnotherConnectionRepeatsOfALogAddsNothing() {
    const log = new LogBuffer();
    log.add(piece(0, "é\\xff\n"));
    log.resume();
    log.add(piece(0, "é\\xff\n"));
    log.add(piece(0, "é\\xff\nnew\n"));
    log.add(piece(8, "er\n"));
    equal(log.lines.map((line) => line.text), ["é\\xff", "new", "er"], "lines");
  },
  aLogIsBounded() {
    const log = new LogBuffer();
    const text = "x\n".repeat(1000);
    for (let i = 0; i < 30; i += 1) log.add(piece(i * 2000, text));
    if (log.lines.length > MOST_LINES) throw new Error(`${log.lines.length} lines`);
    equal(log.lines.length + log.dropped, 30000, "lines kept and let go");
  },
  aBarThatDrawsOverItselfIsOneLine() {
    const log = new LogBuffer();
    log.add(piece(0, "10 %\r20 %\r\u001b[32m30 %\u001b[0m\r\n"));
    equal(log.lines.map((line) => line.text), ["30 %"], "lines");
  },
  equalStacksAreOne() {
    const merged = mergeStacks([
      {rank: 0, place: "a", text: "Thread 17: wait"}, {rank: 1, place: "b", text: "load"},
      {rank: 2, place: "a", text: "Thread 99: wait"}
    ]);
    equal(merged.map((group) => group.ranks), [[1], [0, 2]], "ranks");
  },
  async whatAnAnswerLeavesOutIsALine() {
    const stacks = new JobStacks("j");
    stacks.update({state: "JOB_STATE_RUNNING", worldSize: 5});
    const one = (rank) => ({rank, place: "wait", text: "", json: "{}"});
    const said = async (ask, answer) => {
      const body = JSON.stringify(answer);
      await replacing([[window, "fetch", async () => new Response(body)]], ask);
      const shown = stacks.element.querySelector(".left-out");
      return shown.hidden ? "" : shown.textContent;
    };
    equal(
        await said(() => stacks.ask(), {stacks: [one(3), one(0)], more: true}),
        "The stacks of 3 of 5 ranks had no room in the answer: ranks 1-2,4.", "stacks");
    equal(
        await said(() => stacks.ask([1, 4]), {stacks: [one(1)], more: true}),
        "The stacks of 1 of 2 ranks had no room in the answer: rank 4.", "stacks of two ranks");
    equal(
        await said(() => stacks.askFlight(), {records: [one(0)], more: true}),
        "The records of 4 of 5 ranks had no room in the answer: ranks 1-4.", "flight records");
    equal(await said(() => stacks.ask(), {stacks: [one(0)], more: false}), "", "all ranks");
    const odd = Array.from({length: 600}, (_, i) => ({rank: 2 * i}));
    const many = leftOut("stacks", [], 1200, odd, true);
    equal([many.length < 200, many.endsWith(", ….")], [true, true], "a list with an end");
  },
  ofADebuggersStacksTheMainThreadCounts() {
    const text = (address, other) =>
        `call stacks (gdb):\n[New LWP ${address}]\n\nThread 2 (Thread 0x${address} (LWP 7)):\n#0  ${
            other} ()\n\n` +
        `Thread 1 (Thread 0x${address} (LWP 6)):\n#0  0x${address} in poll (fds=0x${address}, n=${
            address}) at poll.c:42\n`;
    const merged = mergeStacks([{rank: 0, text: text(12, "a")}, {rank: 1, text: text(34, "b")}]);
    equal(merged.map((group) => group.ranks), [[0, 1]], "ranks");
    equal(
        merged[0].main.split("\n")[1], "#0  0x12 in poll (fds=0x12, n=12) at poll.c:42",
        "the main thread first");
    equal(merged[0].rest.includes("#0  a ()"), true, "the other threads");
  },
  ranksAreReadAsTheyAreWritten() {
    equal(parseRanks(formatRanks([7, 0, 4, 5, 6])), [0, 4, 5, 6, 7], "ranks");
    equal(
        [parseRanks(""), parseRanks("1-"), parseRanks("7-4"), parseRanks("x")],
        [[], null, null, null], "what is not a list");
  },
  eventsComeInPieces() {
    const parser = new EventParser();
    equal(parser.feed("event: change\nda"), [], "half of one");
    equal(
        parser.feed("ta: {}\n\n: heartbeat\n\nevent: end\ndata: {}\n\n").map((one) => one.event),
        ["change", "end"], "events");
  },
  textIsThatOfTheCommand() {
    equal(
        [
          formatDuration(59.9), formatDuration(60), formatDuration(125), formatDuration(7260),
          formatDuration(90000)
        ],
        ["59s", "1m", "2m5s", "2h1m", "1d1h"], "durations");
    equal(
        ["10m", "1.1m", "0.0001h", " 5 s ", "250ms", "7", "-5s", "soon"].map(apiDuration),
        ["600s", "66s", "0.36s", "5s", "0.25s", "7s", "-5s", "soon"], "durations for the API");
    equal(
        [
          formatNumber(0.012345), formatNumber(1234567), formatNumber("NaN"), formatNumber(0.00001),
          formatNumber(undefined)
        ],
        ["0.01235", "1.235e6", "NaN", "1e-5", "–"], "numbers");
    equal(
        [0.5, 123.4, 12345, 85.44, 1 / 1234].map(formatRate),
        ["2 s/step", "123 step/s", "12345 step/s", "85.4 step/s", "1234 s/step"], "rates");
    equal(
        [0, 1023, 1536, 1023.4 * 1024, 25232932864].map(formatBytes),
        ["0 B", "1023 B", "1.5 KiB", "1023.4 KiB", "23.5 GiB"], "amounts of memory");
  },
  async aLookThatIsAskedForDuringAnotherFollowsIt() {
    const looks = [];
    const polling = poll(() => new Promise((resolve) => looks.push(resolve)), 1e9);
    polling.now();
    equal(looks.length, 1, "one at a time");
    looks[0]();
    await turn();
    equal(looks.length, 2, "one more after it");
    looks[1]();
    await turn();
    equal(looks.length, 2, "and none without a reason");
    polling.now();
    await turn();
    polling.stop();
    equal(looks.length, 3, "at once where none runs");
  },
  async aStreamThatIsClosedBeforeAnybodyLooksIsNeverOpened() {
    const asked = [];
    await replacing([[document, "hidden", true], [window, "fetch", (where) => {
      asked.push(where);
      return new Promise(() => {});
    }]], async () => {
      const close = openStream("/jobs/j/watch", {}, {});
      await turn();
      close();
      await turn();
    });
    equal(asked, [], "requests");
  },
  async moreStreamsThanPlacesWaitForOne() {
    const open = new Set();
    const hang = (where, {signal}) => new Promise((_, reject) => {
      open.add(where);
      signal.addEventListener("abort", () => {
        open.delete(where);
        reject(signal.reason);
      });
    });
    const names = (list) => list.map((i) => `api/v1/jobs/${i}/watch`);
    await replacing([[window, "fetch", hang]], async () => {
      const closers = [1, 2, 3, 4, 5].map((i) => openStream(`/jobs/${i}/watch`, {}, {}));
      await settled(() => open.size === 4);
      equal([...open].sort(), names([1, 2, 3, 4]), "streams that have a place");
      closers[0]();
      closers[3]();
      await settled(() => open.size === 3);
      equal([...open].sort(), names([2, 3, 5]), "the one that waited has a place");
      for (const close of closers) close();
      await settled(() => open.size === 0);
    });
    const {held, pending} = await navigator.locks.query();
    equal([held, pending], [[], []], "places are given back");
  },
  anAddressThatCannotBeReadNamesNoPage() {
    const routes = [[/^#\/jobs\/([^/]+)$/, "jobs", "job"], [/^#\/jobs$/, "jobs", "list"]];
    equal(
        routeOf("#/jobs/a%2Fb", routes), {page: "jobs", view: "job", parameters: ["a/b"]}, "a job");
    equal(routeOf("#/jobs", routes).view, "list", "the list");
    equal([routeOf("#/jobs/%", routes), routeOf("#/nodes", routes)], [null, null], "no page");
  },
  aLostNodeIsNoCapacity() {
    const node = (state, gpus) => ({
      state: `NODE_STATE_${state}`,
      resources: {slots: 8, gpus},
      slotsUsed: 3,
      gpusUsed: gpus.slice(1)
    });
    const nodes = [node("HEALTHY", [{}, {}]), node("LOST", [{}, {}]), node("DRAINING", []), {}];
    equal(capacity(nodes), {slots: 16, slotsUsed: 6, gpus: 2, gpusUsed: 1}, "of both that are there");
  },
  aVerdictSaysOfHowManyJobsItIs() {
    const jobs = (...states) =>
        states.flatMap(([count, state]) => Array(count).fill({state: `JOB_STATE_${state}`}));
    const all = {count: 3, hasAll: true};
    const said = (list, hasNext, active, problems = 0, failed = all) =>
        verdict(problems, coverage(list, hasNext, active), failed);
    const some = jobs([3, "RUNNING"], [2, "QUEUED"], [5, "FAILED"]);
    equal(said(some, false, 5), "All is well.", "all jobs");
    equal(said(some, true, 5), "All is well.", "all that have not ended");
    equal(said(some, true, 5, 1), "1 thing to look at.", "one thing");
    const many = jobs([200, "RUNNING"]);
    equal(said(many, true, 300), "All is well, as far as 200 of 300 active jobs tell.", "many");
    equal(
        said(many, true, 300, 2), "2 things to look at, as far as 200 of 300 active jobs tell.",
        "many, and two things");
    equal(
        said(many, true, 300, 0, {count: 2000, hasAll: false}),
        "All is well, as far as 200 of 300 active jobs and the newest 2000 that failed tell.",
        "many that failed");
    equal(said(many, true, 200), "All is well.", "one page of them, and others that have ended");
    equal(said([], false, 0), "All is well.", "no job");
  },
  theRestOfAListIsAtLeastWhatIsKnown() {
    const job = (state) => ({state: `JOB_STATE_${state}`});
    const cut = (last) => {
      const {isCut, isCutRunning} = coverage([job("RUNNING"), job(last)], true, 9);
      return [isCut, isCutRunning];
    };
    equal([cut("RUNNING"), cut("SUSPENDED")], [[true, true], [true, true]], "jobs with ranks");
    equal([cut("QUEUED"), cut("WAITING")], [[true, false], [true, false]], "the queue");
    equal(cut("SUCCEEDED"), [false, false], "jobs that have ended");
    equal(
        [
          restText(200, 60, true), restText(100, 60, false), restText(60, 60, false),
          restText(0, 20, true)
        ],
        ["140+ more: ", "40 more: ", "", "More: "], "texts");
  },
  async jobsThatFailedAreLookedForOnAllPages() {
    const pages = (count) => {
      const asked = [];
      const answer = async (where) => {
        const query = new URL(where, "http://h/").searchParams;
        const page = Number(query.get("pageToken") ?? 0);
        asked.push(query.get("state"));
        return new Response(JSON.stringify(
            {jobs: [{jobId: `j${page}`}], nextPageToken: page + 1 < count ? `${page + 1}` : ""}));
      };
      return [asked, [[window, "fetch", answer]]];
    };
    const failed = new FailedJobs();
    const [three, answerThree] = pages(3);
    await replacing(answerThree, async () => {
      await failed.ask(undefined, 0);
      await failed.ask(undefined, 29000);
    });
    equal(three, Array(3).fill("JOB_STATE_FAILED"), "requests: none again soon");
    equal([failed.jobs.map((job) => job.jobId), failed.hasAll], [["j0", "j1", "j2"], true], "jobs");
    const [hundred, answerHundred] = pages(100);
    await replacing(answerHundred, () => failed.ask(undefined, 30000));
    equal([hundred.length, failed.jobs.length, failed.hasAll], [10, 10, false], "too many");
  },
  aLossThatIsNoNumberNeedsAttention() {
    const cluster = {readOnlyReason: ""};
    const job = {jobId: "j", state: "JOB_STATE_RUNNING", progress: {loss: "NaN"}, stragglers: []};
    equal(attention(cluster, [], [job], 0).map((one) => one.text), ["is NaN"], "text");
    equal(
        attention({readOnlyReason: "disk full"}, [], [], 0).map((one) => one.tone), ["bad"],
        "read only");
  },
};

// {passed, failures: ["name: why"]}
export async function runAll() {
  const failures = [];
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
    } catch (error) {
      failures.push(`${name}: ${error.message}`);
    }
  }
  return {passed: Object.keys(tests).length - failures.length, failures};
}
