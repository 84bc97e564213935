// The mesh as a grid, the slowest rank, and all about the one that is chosen.

import {formatNumber} from '../../model/format.js';
import {cellOf, highestStep, slowest, WaitShares} from '../../model/lag.js';
import {stateName} from '../../model/names.js';
import {el, keyed, setText, show} from '../../ui/dom.js';
import {axisWords, legend, RankGrid} from '../../ui/rank_grid.js';

export const RANKS_OF_PAGE = 1024;
const MOST_BEHIND = 8;

export class JobRanks {
  // The first rank that is shown.
  first = 0;
  // What the last look has found; foremost: the step of the job's first rank.
  #looked = {generation: -1, foremost: -1, progress: new Map()};
  #waits = new WaitShares();
  #job = null;
  #rate = 0;
#auto = true;

  // log(rank), stack(rank): shows them. may(): whether the caller may ask for stacks. look(): looks
  // at other ranks.
  constructor(act) {
    this.act = act;
    this.grid = new RankGrid({choose: () => this.#panel(), open: (rank) => act.log(rank)});
    this.grid.grid.addEventListener('focusin', () => {
      this.#auto = false;
    });
    this.slow = el('p', {class: 'slowest'});
    this.shape = el('p', {class: 'muted'});
    const turn = (by) => () => this.#turnTo(this.first + by);
    this.pages =
        el('div', {class: 'actions', hidden: true},
           el('button', {type: 'button', onclick: turn(-RANKS_OF_PAGE)}, 'Earlier ranks'),
           el('button', {type: 'button', onclick: turn(RANKS_OF_PAGE)}, 'Later ranks'));
    this.colour =
        el('select', {id: 'rank-colour'}, new Option('step lag', 'lag'),
           new Option('time it computes', 'computes'));
    this.colour.addEventListener('change', () => this.#recolour());
    this.legend = el('div');
    this.behindList = el('span', {class: 'actions'});
    this.behind = el('div', {class: 'behind'}, el('span', {class: 'muted'}), this.behindList);
    this.panelTitle = el('h3', {});
    this.panelFacts = el('dl', {class: 'facts-list'});
    this.toLog = el('button', {type: 'button', onclick: () => act.log(this.grid.chosen)}, 'Log');
    this.toStack =
        el('button', {type: 'button', onclick: () => act.stack(this.grid.chosen)}, 'Stack');
    this.panel =
        el('div', {class: 'rank-panel', hidden: true}, this.panelTitle, this.panelFacts,
           el('div', {class: 'actions'}, this.toLog, this.toStack));
    this.element =
        el('section', {'aria-labelledby': 'ranks'}, el('h2', {id: 'ranks'}, 'Ranks'), this.slow,
           el('div', {class: 'controls'}, this.shape,
              el('label', {class: 'inline', 'for': 'rank-colour'}, 'Colour: ', this.colour)),
           this.pages, this.grid.element, this.behind, this.legend, this.panel);
    this.#recolour();
  }

  focus() {
    this.grid.focus();
  }

  choose(rank, focus) {
    this.#auto = false;
    if (this.#job) this.#turnTo(rank - (rank % RANKS_OF_PAGE));
    this.grid.choose(rank, focus);
  }

  // Another look at the progress of the ranks that are shown.
  looked(job) {
    this.#looked = {
      generation: job.generation,
      foremost: job.progress?.step ?? -1,
      progress: new Map(job.ranks.map(({assignment, progress}) => [assignment.rank, progress]))
    };
    this.#waits.look(job.generation, job.ranks);
  }

  update(job, rate) {
    this.#job = job;
    this.#rate = rate;
    if (this.first > 0 && this.first >= job.ranks.length) {
      // The job has shrunk.
      const last = Math.max(0, job.ranks.length - 1);
      this.first = last - (last % RANKS_OF_PAGE);
      this.act.look();
    }
    const ranks = this.#shown();
    show(this.element, ranks.length > 0);
    if (!ranks.length) return;
    const failed = job.failure?.generation === job.generation ? job.failure.rank : -1;
    const look = {
      highest: this.#highest(ranks),
      stepsPerSecond: rate,
      failedRank: failed,
      slow: new Set((job.stragglers ?? []).map((one) => one.rank)),
      shares: this.colour.value === 'computes' ? this.#sharesOf(ranks) : null
    };
    const cells = new Map(ranks.map((rank) => [rank.assignment.rank, cellOf(rank, look)]));
    this.grid.update(ranks, job.mesh, (rank) => {
      const cell = cells.get(rank.assignment.rank);
      return {...cell, title: this.#title(rank, cell, look)};
    });
    this.#listBehind(cells, look.slow);
    const isRunning = stateName(job.state) === 'RUNNING';
    const slow =
        isRunning ? slowest(job, ranks, rate, this.#sharesOf(ranks), this.#foremost()) : null;
    const shown = job.ranks.length > RANKS_OF_PAGE ?
        `ranks ${this.first} to ${Math.min(job.ranks.length, this.first + RANKS_OF_PAGE) - 1}` :
        '';
    setText(this.slow, isRunning ? slowWords(slow, shown) : '');
    this.slow.dataset.tone = slow ? 'warn' : 'rest';
    setText(
        this.shape,
        [`${job.worldSize} ranks`, axisWords(job.mesh) && `mesh ${axisWords(job.mesh)}`]
                .filter(Boolean)
                .join(', ') +
            (shown ? `; ${shown} are shown` : ''));
    show(this.pages, job.ranks.length > RANKS_OF_PAGE);
    const wanted = failed >= 0 ? failed : slow?.rank ?? ranks[0].assignment.rank;
    if (this.#auto && this.grid.chosen !== wanted) this.grid.choose(wanted);
    this.#panel();
  }

  // Those of this page, each with what it said of itself at the last look. What is older cannot be
  // compared with it.
  #shown() {
    const shown = this.#job.ranks.slice(this.first, this.first + RANKS_OF_PAGE);
    if (this.#looked.generation !== this.#job.generation) return shown;
    return shown.map((rank) => {
      const progress = this.#looked.progress.get(rank.assignment.rank);
      const isRunning = stateName(rank.state) === 'RUNNING';
      return {...rank, progress: isRunning ? progress : progress ?? rank.progress};
    });
  }

  // The foremost ranks may be on another page.
  #foremost() {
    return this.#looked.generation === this.#job.generation ? this.#looked.foremost : -1;
  }

  #highest(ranks) {
    return Math.max(this.#foremost(), highestStep(ranks));
  }

  // Those of other ranks are of an earlier look.
  #sharesOf(ranks) {
    const shares = this.#waits.shares;
    return new Map(ranks.map(({assignment}) => [assignment.rank, shares.get(assignment.rank)])
                       .filter(([, share]) => share !== undefined));
  }

  // Those that are furthest behind, as words: for a reader of the screen, and where cells are
  // small.
  #listBehind(cells, slow) {
    const worst = [...cells]
                      .filter(([, cell]) => cell.level > 0)
                      .sort((a, b) => b[1].level - a[1].level || a[0] - b[0]);
    show(this.behind, worst.length > 0);
    setText(
        this.behind.firstChild,
        worst.length > MOST_BEHIND ? `${worst.length} ranks stand out:` : 'Stand out:');
    keyed(
        this.behindList, worst.slice(0, MOST_BEHIND), ([rank]) => rank,
        ([rank]) => el('button', {type: 'button', onclick: () => this.choose(rank, true)}),
        (button, [rank, cell]) =>
            setText(button, `rank ${rank}: ${slow.has(rank) ? 'slow, ' : ''}${cell.text}`));
  }

  #recolour() {
    const [words, text] = this.colour.value === 'computes' ?
        [
          ['as the others', 'more', 'much more', 'most of all'],
          'Share of its last steps in which a rank computed: the others wait for the one that computes longest.'
        ] :
        [
          ['in step', 'behind', 'far behind, or slow', 'very far behind'],
          'The number is the rank\'s step; −n: n steps behind the foremost.'
        ];
    this.legend.replaceChildren(legend(words), el('p', {class: 'muted legend-text'}, text));
    if (this.#job) this.update(this.#job, this.#rate);
  }

  #turnTo(first) {
    if (first === this.first || first < 0 || first >= this.#job.ranks.length) return;
    this.first = first;
    this.update(this.#job, this.#rate);
    this.act.look();
  }

  #title(rank, cell, {highest, slow}) {
    const step = rank.progress?.step;
    const lag = highest - step;
    const where = (step === undefined ? '' : `, step ${step}${lag > 0 ? `, ${lag} behind` : ''}`) +
        (slow.has(rank.assignment.rank) ? ', slow' : '');
    return `rank ${rank.assignment.rank} on ${rank.nodeName}, ${
        rank.end || (cell.kind === 'run' ? 'runs' : cell.text)}${where}`;
  }

  #panel() {
    const ranks = this.#job ? this.#shown() : [];
    const rank = ranks.find((one) => one.assignment.rank === this.grid.chosen);
    show(this.panel, Boolean(rank));
    if (!rank) return;
    setText(
        this.panelTitle,
        `Rank ${rank.assignment.rank} on ${rank.nodeName || rank.assignment.nodeId}`);
    keyed(
        this.panelFacts,
        facts(rank, this.#job, this.#waits.shares.get(rank.assignment.rank), this.#highest(ranks)),
        ([name]) => name, ([name]) => el('div', {}, el('dt', {}, name), el('dd')),
        (node, [, value]) => setText(node.lastChild, value));
    show(this.toStack, stateName(rank.state) === 'RUNNING' && this.act.may());
  }
}

// slow: of slowest. shown: the ranks that were looked at; "": all.
function slowWords(slow, shown) {
  const of = shown && !slow?.isOfAll ? ` of ${shown}` : '';
  return slow ? `Slowest${of}: rank ${slow.rank} on ${slow.node} ${slow.sentence}.` :
                `No rank${of} stands out.`;
}

function facts(rank, job, share, highest) {
  const {assignment, progress} = rank;
  const list = [[
    'state',
    `${stateName(rank.state).toLowerCase()}${
        rank.end ? `: ${rank.end}${rank.exit?.teardown ? ', as a consequence' : ''}` : ''}`
  ]];
  if (progress?.step !== undefined)
    list.push([
      'step',
      `${progress.step}${highest > progress.step ? `, ${highest - progress.step} behind` : ''}`
    ]);
  if (share !== undefined)
    list.push(['waits for others', `${Math.round(share * 100)} % of its time`]);
  else if (progress?.waitedSeconds)
    list.push(['waited for others', `${formatNumber(progress.waitedSeconds)} s in all`]);
  if (progress?.loss !== undefined) list.push(['loss', formatNumber(progress.loss)]);
  for (const [name, value] of Object.entries(progress?.metrics ?? {}).slice(0, 8))
    list.push([name, formatNumber(value)]);
  if (progress?.note) list.push(['says', progress.note]);
  if (assignment.meshCoordinates?.length)
    list.push([
      'place',
      assignment.meshCoordinates.map((at, i) => `${job.mesh[i]?.name ?? i} ${at}`).join(', ')
    ]);
  list.push(['local rank', String(assignment.localRank)]);
  if (assignment.gpus?.length) list.push(['GPU', assignment.gpus.join(', ')]);
  if (rank.pid)
    list.push([
      'process',
      `${rank.pid}${
          assignment.processGeneration !== job.generation ?
              `, started for generation ${assignment.processGeneration}` :
              ''}`
    ]);
  return list;
}
