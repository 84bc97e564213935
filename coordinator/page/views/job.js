// A job, in the order in which people look: state, progress, loss, the slowest rank, the log,
// stacks, then all the rest.

import {fold} from '../model/fold.js';
import {hasEnded, stateName} from '../model/names.js';
import {fraction, rateOfCurve, speedOf, wholePercent} from '../model/rate.js';
import {get} from '../net/api.js';
import {serverNow} from '../net/link.js';
import {poll} from '../net/poll.js';
import {openStream} from '../net/stream.js';
import {announce, el, measured, setText, show} from '../ui/dom.js';
import {LogView} from '../ui/log_view.js';
import {Pictures} from '../ui/pictures.js';

import {JobAbout} from './job/about.js';
import {JobActions} from './job/actions.js';
import {JobCurves} from './job/curves.js';
import {JobFailure} from './job/failure.js';
import {JobHead} from './job/head.js';
import {JobHistory} from './job/history.js';
import {JobRanks, RANKS_OF_PAGE} from './job/ranks.js';
import {JobStacks} from './job/stacks.js';

const PICTURES_MS = 5000;
// The watch has no progress of single ranks: these are asked for, the less often the more there
// are.
const ranksPeriod = (count) => (count <= 64 ? 1500 : count <= 512 ? 3000 : 5000);

export class JobView {
  #known = null;
  // The curve of a long job has few points: what is seen here of its steps is added to it.
  #rate = null;
  // Events and the generation of one answer.
  #told = {events: [], generation: 0};
  #state = '';
  #logRanks = null;
  #scheduled = false;

  constructor({me, parameters}) {
    [this.id] = parameters;
    this.title = this.id;
    this.problem = el('p', {class: 'problem', role: 'alert', hidden: true});
    this.head = new JobHead(this.id);
    this.actions = new JobActions(
        this.id, me, {stack: () => this.stacks.ask(), changed: () => this.#askEvents()});
    this.failure = new JobFailure(
        {log: (rank) => this.#log(rank), rank: (rank) => this.ranks.choose(rank, true)});
    this.curves = new JobCurves();
    this.ranks = new JobRanks({
      log: (rank) => this.#log(rank),
      stack: (rank) => this.stacks.ask([rank]),
      may: () => this.actions.mayStack(),
      look: () => this.#askEvents()
    });
    this.log = new LogView(this.id);
    this.stacks = new JobStacks(this.id);
    this.pictures = new Pictures(this.id);
    this.history = new JobHistory();
    this.about = new JobAbout(this.id);
    this.logSection =
        el('section', {'aria-labelledby': 'log'}, el('h2', {id: 'log', tabindex: '-1'}, 'Log'),
           this.log.element);
    this.element = el(
        'div', {class: 'view job'},
        el('div', {class: 'title-row'}, this.head.title, this.head.badge, this.actions.element),
        this.problem, this.head.element, this.failure.element,
        el('div', {class: 'job-columns'}, this.curves.element, this.ranks.element), this.logSection,
        this.stacks.element, this.pictures.element, this.history.element, this.about.element);
    this.keys = {
      s: () => this.stacks.ask(),
      l: () => this.#log(null),
      g: () => this.ranks.focus(),
      f: () => this.failure.focus(),
      c: () => this.actions.cancel(),
      '/': () => this.log.focusSearch()
    };
  }

  start() {
    this.closeWatch = openStream(`/jobs/${encodeURIComponent(this.id)}/watch`, {}, {
      on: (event, data) => {
        if (event !== 'change') return;
        this.#known = fold(this.#known, data);
        this.#changed(Boolean(data.job));
      },
      refused: (error) => this.#say(error.message),
    });
    this.ranksPolling = poll(
        async (signal) => {
          const known = this.#known?.job;
          if (known && hasEnded(known)) return;
          const answer = await this.#look(signal);
          // The watch may have to wait for its turn.
          if (!this.#known) {
            this.#known = fold(null, answer);
            this.#changed(true);
          }
          this.#later();
        },
        () =>
            (this.#known && hasEnded(this.#known.job) ?
                 Infinity :
                 ranksPeriod(this.#known?.job.worldSize ?? 0)),
        (error) => this.#say(error.message));
    // Once more after the end, for what was shown last.
    let isLast = false;
    this.picturesPolling = poll(async (signal) => {
      const ended = this.#known && hasEnded(this.#known.job);
      await this.pictures.ask(signal);
      isLast = ended;
    }, () => this.#known && hasEnded(this.#known.job) && isLast ? Infinity : PICTURES_MS);
    // Ages and the time left go on between reports.
    this.ticking = setInterval(() => {
      if (!document.hidden) this.#later();
    }, 1000);
  }

  stop() {
    this.closeWatch();
    this.ranksPolling.stop();
    this.picturesPolling.stop();
    this.log.stop();
    clearInterval(this.ticking);
  }

  allowed() {
    this.#later();
  }

  // isWhole: the job was not told as a change, as after another connection.
  #changed(isWhole) {
    const {job, curve} = this.#known;
    const step = job.progress?.step;
    if (!this.#rate || (isWhole && step !== this.#rate.seen)) this.#rate = rateOfCurve(curve);
    this.#rate.lookAt(job, serverNow() / 1000, !isWhole);
    const state = `${stateName(job.state)} ${job.generation}`;
    if (state !== this.#state) {
      const first = this.#state === '';
      this.#state = state;
      this.#chooseLog(job);
      if (!first)
        announce(`${this.id} is ${stateName(job.state)}${job.reason ? `: ${job.reason}` : ''}`);
      this.#askEvents();
    }
    this.#later();
  }

  // Asks for the ranks that are shown, with their progress, and for the events, which come with the
  // first rank alone. Returns the answer that has it.
  async #look(signal) {
    const ask = (firstRank, maxRanks) =>
        get(`/jobs/${encodeURIComponent(this.id)}`, {firstRank, maxRanks}, signal);
    const first = this.ranks.first;
    const [start, page] = await Promise.all(
        [ask(0, first ? 1 : RANKS_OF_PAGE), first ? ask(first, RANKS_OF_PAGE) : null]);
    const {job, nextRank} = page ?? start;
    // An answer has a most of bytes too.
    const end = first + RANKS_OF_PAGE;
    for (let next = nextRank; next > 0 && next < end;) {
      const more = await ask(next, end - next);
      if (more.job.generation !== job.generation) break;
      job.ranks.push(...more.job.ranks);
      next = more.nextRank;
    }
    // Another page may have been turned to meanwhile, which is asked for then.
    if (first === this.ranks.first) this.ranks.looked(job);
    if (start.events.length) this.#told = {events: start.events, generation: start.job.generation};
    return start;
  }

  // All of the last state, ranks with their last progress included, once the job has ended.
  async #askEvents() {
    try {
      await this.#look();
      this.#later();
    } catch (error) {
      if (error.status >= 400 && error.status < 500) this.#say(error.message);
    }
  }

  // All ranks while they run, the failed one afterwards; what a person has chosen stays.
  #chooseLog(job) {
    const started =
        job.generation > 0 && !['ADMITTED', 'RENDEZVOUS'].includes(stateName(job.state));
    if (!started || this.log.isChosen) return;
    const failed = hasEnded(job) && job.failure?.rank >= 0 ? String(job.failure.rank) : '';
    if (this.#logRanks === failed) return;
    this.#logRanks = failed;
    this.log.open(failed);
  }

  #log(rank) {
    if (rank !== null) this.log.choose(String(rank));
    const heading = document.getElementById('log');
    heading.scrollIntoView({block: 'start'});
    heading.focus({preventScroll: true});
  }

  #later() {
    if (this.#scheduled || !this.#known) return;
    this.#scheduled = true;
    setTimeout(() => {
      this.#scheduled = false;
      measured('job', () => this.#update());
    }, 50);
  }

  #update() {
    const {job, curve} = this.#known;
    const now = serverNow();
    const speed = speedOf(job, this.#rate, now);
    show(this.logSection, job.generation > 0);
    show(this.curves.element, job.generation > 0);
    document.title = `${titleOf(job)}${this.id} – meshrun`;
    this.head.update(job, speed, now);
    this.actions.update(job);
    this.failure.update(job, this.#told.events);
    this.curves.update(curve);
    this.ranks.update(job, speed.stepsPerSecond);
    this.log.setGeneration(job.generation);
    this.stacks.update(job);
    this.pictures.update(now);
    this.history.update(this.#told, now);
    this.about.update(job, now);
  }

  #say(text) {
    setText(this.problem, text);
    show(this.problem, true);
  }
}

// A tab among others says how its job does.
function titleOf(job) {
  const part = fraction(job.progress);
  const state = stateName(job.state);
  if (state !== 'RUNNING') return `${state} `;
  return Number.isNaN(part) ? '' : `${wholePercent(part)} % `;
}
