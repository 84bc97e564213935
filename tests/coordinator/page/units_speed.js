// Rules of how fast jobs and their ranks are: see units.js.

import {cellOf, lagLevel, slowest, WaitShares, worstStraggler} from "/model/lag.js";
import {fraction, meanRate, Rate, rateOfCurve, remaining, speedOf, wholePercent} from "/model/rate.js";
import {Rates} from "/model/rates.js";
import {progressFacts} from "/ui/bar.js";
import {JobHead} from "/views/job/head.js";

import {equal, rank} from "./units_tools.js";

export const speedRules = {
  theRateForgetsWhatWasBeforeARestart() {
    const rate = new Rate();
    for (const [at, step] of [[0, 100], [1, 110], [2, 20], [3, 25], [4, 30]]) rate.add(at, step);
    equal(rate.value(), 5, "rate");
    equal(remaining({step: 30, totalSteps: 130}, 5), 20, "seconds left");
    const none = [{step: 130, totalSteps: 130}, {step: 140, totalSteps: 130}, {step: 3}, undefined];
    for (const progress of none) equal(remaining(progress, 5), NaN, "no time left");
    equal(remaining({step: 30, totalSteps: 130}, 0), NaN, "no speed");
    equal(fraction({step: 29, totalSteps: 100}), 0.29, "fraction");
    const percents = [[29, 100], [999, 1000], [1000, 1000], [150, 100]].map(
        ([step, totalSteps]) => wholePercent(fraction({step, totalSteps})));
    equal(percents, [29, 99, 100, 100], "percent");
  },
  onlyAJobThatMakesStepsHasASpeedAndATimeLeft() {
    const rate = new Rate();
    for (const [at, step] of [[100, 10], [101, 20], [102, 30]]) rate.add(at, step);
    const progress = {step: 30, totalSteps: 130};
    const said = (more, seconds) => {
      const job = {state: "JOB_STATE_RUNNING", progress, ...more};
      const speed = speedOf(job, rate, seconds * 1000);
      const head = new JobHead("j");
      head.update(job, speed, seconds * 1000);
      const shown = [...head.facts.children].map((fact) => fact.dataset.fact);
      const facts = progressFacts(job, speed).join(" ");
      equal(shown.includes("Time left"), facts.includes("left"), "the time left, in both views");
      return [/step\/s/.test(facts), shown.includes("Time left"), facts.includes("no step since")];
    };
    equal(said({}, 103), [true, true, false], "it makes steps");
    equal(said({}, 116), [true, true, false], "a step that takes longer");
    equal(said({}, 118), [false, false, true], "no step for longer than a few intervals");
    equal(said({hang: "rank 3 hangs"}, 103), [false, false, true], "it hangs");
    equal(said({pausedSince: "2026-11-30T10:00:00Z"}, 103), [false, false, true], "it is paused");
    for (const state of ["QUEUED", "RENDEZVOUS", "QUIESCING", "WAITING", "SUSPENDED", "FAILED"])
      equal(said({state: `JOB_STATE_${state}`}, 103), [false, false, false], state);
  },
  slowStepsAreNoStandstill() {
    const rate = new Rate();
    for (const [at, step] of [[0, 1], [60, 2], [120, 3]]) rate.add(at, step);
    equal([rate.isIdle(180), rate.isIdle(421)], [false, true], "a minute a step");
    equal(new Rate().isIdle(1e9), false, "nothing is known");
  },
  theRatesOfManyJobsStopWithThem() {
    const rates = new Rates();
    const job = (state, step) => ({jobId: "j", state: `JOB_STATE_${state}`, progress: {step}});
    for (const second of [1, 3, 5]) rates.add([job("RUNNING", 5 * second)], 1000 * second);
    equal(rates.of(job("RUNNING", 25)).stepsPerSecond, 5, "it runs");
    equal(rates.of(job("SUSPENDED", 25)).stepsPerSecond, 0, "it is suspended");
    rates.add([job("RUNNING", 25)], 30000);
    equal(
        rates.of(job("RUNNING", 25)), {stepsPerSecond: 0, idleSince: 5, seenSince: NaN},
        "it stands still");
  },
  aFirstLookInTheMiddleOfAStepIsNoReport() {
    const rates = new Rates();
    const said = (seconds, step, more = {}) => {
      const job = {jobId: "j", state: "JOB_STATE_RUNNING", progress: {step}, ...more};
      rates.add([job], 1000 * seconds);
      const {stepsPerSecond, idleSince, seenSince} = rates.of(job);
      return [stepsPerSecond, idleSince, seenSince];
    };
    const nothing = [0, NaN, NaN];
    equal(said(0, 7), nothing, "a first look");
    equal(said(2, 8), nothing, "a step that began before it");
    for (let second = 4; second < 62; second += 2) equal(said(second, 8), nothing, `${second} s`);
    equal(said(62, 9), [1 / 60, NaN, NaN], "a whole step");
    equal(said(64, 9, {hang: "rank 3 hangs"}), [0, 62, NaN], "its last step was seen");
    equal(said(600, 9, {hang: "rank 3 hangs"}), [0, 62, NaN], "after a pause of the looks too");
    equal(
        said(1200, 20, {hang: "rank 3 hangs"}), [0, NaN, 1200],
        "a step that was made while nobody looked");
    equal(said(1202, 20, {hang: "rank 3 hangs"}), [0, NaN, 1200], "and no other one");
    equal(said(1204, 21), nothing, "it goes on, after nobody knows how long");
    for (let second = 1214; second < 1264; second += 10) equal(said(second, 21), nothing, "a step");
    equal(said(1264, 22), [1 / 60, NaN, NaN], "at its speed");
  },
  aTimeWithoutStepsIsNotInTheSpeed() {
    const rates = new Rates();
    const said = (seconds, step, more = {}) => {
      const job = {jobId: "j", state: "JOB_STATE_RUNNING", progress: {step}, generation: 1, ...more};
      rates.add([job], 1000 * seconds);
      return rates.of(job).stepsPerSecond;
    };
    const wait = (from, to, step, more) => {
      for (let second = from; second < to; second += 10) said(second, step, more);
    };
    said(0, 0);
    said(1, 10);
    equal(said(2, 20), 10, "it makes steps");
    const paused = {pausedSince: "2026-11-30T10:00:00Z"};
    equal(said(3, 20, paused), 0, "it is paused, for less time than a standstill takes");
    equal([said(8, 25), said(9, 35)], [0, 10], "it goes on");
    wait(19, 3609, 35);
    equal([said(3609, 40), said(3610, 50)], [0, 10], "nobody has paused it");
    wait(3620, 7200, 50, {hang: "rank 3 hangs"});
    equal([said(7200, 60), said(7201, 70)], [0, 10], "it hung");
    equal(said(7206, 71, {generation: 2}), 0, "another generation, which goes on where it was");
    equal(said(7207, 81, {generation: 2}), 10, "with a speed of its own");
  },
  anHourWithoutALookIsNoLongStep() {
    const rates = new Rates();
    const speed = (seconds, step) => {
      const job = {jobId: "j", state: "JOB_STATE_RUNNING", progress: {step}};
      rates.add([job], 1000 * seconds);
      return rates.of(job);
    };
    for (let second = 0; second <= 10; second += 2) speed(second, second);
    equal(speed(3610, 3610).stepsPerSecond, 1, "it is where it should be");
    equal(speed(3612, 3612).stepsPerSecond, 1, "and makes steps");
    equal(speed(3626, 3612).idleSince, NaN, "a step that takes longer");
    equal(speed(3630, 3612).idleSince, 3612, "it has stopped");
    // Steps of a minute go on being such.
    const rate = new Rate();
    for (const [at, step] of [[0, 0], [60, 1], [120, 2]]) rate.look(at, step);
    rate.look(3720, 62, false);
    rate.look(3780, 63);
    equal([rate.at(3780), rate.isIdle(4080), rate.isIdle(4081)], [1 / 60, false, true], "minutes");
  },
  aStandstillInACurveIsNoSpeed() {
    const of = (...reports) => rateOfCurve(reports.map(
        (second, step) => ({step, at: new Date(1000 * second).toISOString()})));
    equal(of(0, 1, 2, 3602).value(), 0, "a step after an hour");
    const rate = of(0, 1, 2, 3602, 3603);
    equal([rate.value(), rate.isIdle(3619)], [1, true], "it goes on, and stops");
  },
  aSpeedEndsWithTheStepsThatNobodySaw() {
    // A point every 2 minutes, a step a second, until 1920 s; the last point is of 1800 s.
    const curve = [...Array(15).keys()].map((i) => ({
      step: 120 * (i + 1),
      at: new Date(120000 * (i + 1)).toISOString()
    }));
    const opened = (step, seconds, more = {}) => {
      const rate = rateOfCurve(curve);
      rate.look(seconds, step);
      return (now) => {
        const job = {state: "JOB_STATE_RUNNING", progress: {step}, ...more};
        const {stepsPerSecond, idleSince, seenSince} = speedOf(job, rate, 1000 * now);
        return [stepsPerSecond, idleSince, seenSince];
      };
    };
    equal(opened(1890, 1890)(1890), [1, NaN, NaN], "it makes steps");
    equal(opened(1920, 2520)(2520), [0, NaN, NaN], "10 minutes after its last step");
    equal(opened(1920, 2520)(3200), [0, NaN, 2520], "and no step since then");
    equal(opened(1920, 1921)(2100), [0, NaN, NaN], "it stands still while the page is open");
    const hang = {hang: "rank 3 hangs"};
    equal(opened(1920, 2520, hang)(2530), [0, NaN, 2520], "it hangs, since nobody knows when");
    equal(opened(1800, 2520, hang)(2530), [0, 1800, NaN], "its last step is a point");
    equal(opened(40, 2520)(2530), [0, NaN, NaN], "it has begun anew");
    const rate = rateOfCurve(curve);
    for (const [seconds, step] of [[2520, 1920], [2900, 1921], [2901, 1922]])
      rate.look(seconds, step);
    equal(rate.at(2901), 1, "it goes on: the standstill is no part of its speed");
  },
  whatIsNotKnownOfTheLastStepIsNotSaid() {
    const job = {state: "JOB_STATE_RUNNING", progress: {step: 3}};
    const said = (speed) => {
      const head = new JobHead("j");
      head.update(job, {stepsPerSecond: 0, ...speed}, 0);
      const fact = head.facts.querySelector("[data-fact=Speed] dd")?.textContent ?? "";
      return [fact.replace(/[\d-]+ /g, "").replace(/\d/g, "0"),
              progressFacts(job, {stepsPerSecond: 0, ...speed}).filter((text) => /no/.test(text))
                  .length];
    };
    const at = Date.now() / 1000;
    equal(
        said({idleSince: at, seenSince: NaN}), ["no step since 00:00:00", 1], "the last step");
    equal(
        said({idleSince: NaN, seenSince: at}), ["no step seen since 00:00:00", 1], "a look");
    equal(said({idleSince: NaN, seenSince: NaN}), ["", 0], "it makes steps, or nothing is known");
  },
  theMeanRateIsThatOfEachEpoch() {
    const point = (step, second) => ({step, at: new Date(1000 * second).toISOString()});
    const epochs = Array.from({length: 300}, (_, i) => point(i % 100, i));
    equal(meanRate(epochs), 1, "three epochs of 100 steps");
    equal(meanRate(epochs.slice(0, 205)), 1, "the last point lies low");
    equal(meanRate([point(0, 0), point(10, 5), point(10, 10), point(20, 15)]), 20 / 15, "a pause");
    equal(meanRate([point(100, 0), point(3, 1)]), 0, "only a step back");
    equal([meanRate([]), meanRate([point(5, 1)])], [0, 0], "too few points");
  },
  lagCountsInTimeWhereTheSpeedIsKnown() {
    equal(
        [
          lagLevel(1, 100), lagLevel(150, 100), lagLevel(300, 100), lagLevel(1100, 100),
          lagLevel(9000, 100)
        ],
        [0, 0, 1, 2, 3], "levels");
    equal([lagLevel(2, 0), lagLevel(6, 0), lagLevel(21, 0)], [1, 2, 3], "levels without a speed");
  },
  theSlowestRankIsTheOneThatDoesNotWait() {
    const shares = new Map([[0, 0.6], [1, 0.01], [2, 0.6]]);
    equal(slowest({}, [rank(0, 5), rank(1, 5), rank(2, 5)], 1, shares)?.rank, 1, "rank");
    equal(slowest({}, [rank(0, 5), rank(1, 5)], 1, new Map()), null, "nothing is known");
    equal(
        slowest(
            {stragglers: [{rank: 2, nodeName: "n", computesSeconds: 1, medianSeconds: 0.5}]}, [], 1,
            shares)
            .rank,
        2, "the coordinator's word");
    const named = (number, computesSeconds) =>
        ({rank: number, nodeName: "n", computesSeconds, medianSeconds: 0.5});
    const job = {stragglers: [named(2, 1), named(5, 3), named(7, 2)]};
    equal(slowest(job, [], 1, shares).rank, 5, "the slowest of those that it names");
    equal(worstStraggler({stragglers: []}), undefined, "it names none any more");
    equal(
        [slowest({}, [rank(0, 5), rank(1, 5)], 1, new Map(), 500)?.sentence,
         slowest({}, [rank(0, 400), rank(1, 300)], 1, new Map(), 500)?.sentence],
        ["is 495 steps behind", "is 200 steps behind"], "a foremost rank among others");
  },
  whatARankWaitsIsAShareOfItsStepsNotOfTheTimeBetweenLooks() {
    const waits = new WaitShares();
    // Steps of 10 s with 5 s of waiting; clocks of hosts began at other times.
    const look = (generation, ...steps) => {
      const report = (step, i) => ({
        step,
        waitedSeconds: 5 * step,
        stepAtNanos: (1000 * i + 10 * step) * 1e9
      });
      const ranks = steps.map((step, i) => ({...rank(i, step), progress: report(step, i)}));
      waits.look(generation, ranks);
      return [...waits.shares];
    };
    equal(look(1, 1, 1), [], "a first step");
    equal(look(1, 2, 1), [[0, 0.5]], "a look between the reports of two hosts");
    for (let i = 0; i < 6; i += 1)
      equal(look(1, 2, 2), [[0, 0.5], [1, 0.5]], "a look that finds no later step");
    equal(look(1, 6, 5), [[0, 0.5], [1, 0.5]], "a look that has missed some");
    equal(look(2, 6, 6), [], "another generation");
    equal(look(2, 7, 3), [[0, 0.5]], "a total that falls");
    const one = (waitedSeconds, stepAtNanos) =>
        waits.look(2, [{...rank(0, 8), progress: {step: 8, waitedSeconds, stepAtNanos}}]);
    one(50, undefined);
    one(undefined, 1e12);
    equal([...waits.shares], [[0, 0.5]], "a report that lacks one of them");
  },
  stepsOfMillisecondsHaveAShareToo() {
    const waits = new WaitShares();
    for (let ms = 0; ms <= 5000; ms += 250) {
      const progress = {step: ms, waitedSeconds: 0.0002 * ms, stepAtNanos: ms * 1e6};
      waits.look(1, [{...rank(0, ms), progress}]);
    }
    equal([...waits.shares].map(([, share]) => share.toFixed(6)), ["0.200000"], "share");
  },
  aCellSaysWhatItsRankDoes() {
    const look = {highest: 50, stepsPerSecond: 1, failedRank: 3, slow: new Set(), shares: null};
    equal(cellOf(rank(0, 50), look), {kind: "run", level: 0, text: "50"}, "in step");
    equal(cellOf(rank(0, 30), look), {kind: "run", level: 2, text: "−20"}, "behind");
    equal(cellOf(rank(3, 30), look).kind, "fail", "the one that failed");
    equal(
        cellOf(
            {...rank(1, 2), state: "RANK_STATE_EXITED", exit: {teardown: true, signal: 15}}, look)
            .kind,
        "end", "a consequence");
  },
};
