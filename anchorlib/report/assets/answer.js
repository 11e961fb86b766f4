// The answer on top: verdicts of comparisons, or what deserves attention in a run.

const ORIGINS_SHOWN = 50;
const ALONE_SHOWN = 3;

function* originRows(one) {
  const names = ['title', 'step', 'pass_index', 'call', 'rank', 'phase', 'class', 'error_eps', 'share_differing', 'max_abs', 'max_ulp', 'amongst', 'why'];
  yield [...names, 'ops', 'parents'];
  for (const origin of one.origins) yield [...names.map((name) => origin[name]), origin.ops.join(' '), origin.parents.join(' ')];
}

class Answer {
  constructor(app) {
    this.app = app;
    this.element = h('section', { id: 'answer', 'aria-label': 'Answer' });
  }

  show() {
    const { runs, comparisons, trouble } = this.app.data;
    const found = comparisons.length > 1 ? this.verdicts(comparisons) : comparisons.map((one, i) => this.verdict(one, i));
    if (trouble) found.push(h('p', { class: 'trouble' }, trouble));
    const alone = runs.map((run, number) => this.alone(run, number)).filter(Boolean);
    if (alone.length > ALONE_SHOWN) {
      const count = runs.filter((run) => run.findings.some((one) => one.level !== 'info')).length;
      found.push(h('details', {}, h('summary', {}, `Each run by itself: ${count ? `${plural(count, 'run')} with something to look at` : 'nothing stands out'}`), alone));
    } else found.push(...alone);
    // What a reader has opened or closed stays so when the runs have grown.
    const before = [...this.element.querySelectorAll('details')].map((one) => one.open);
    refill(this.element, h('h2', { class: 'unseen' }, 'Answer'), found);
    const after = [...this.element.querySelectorAll('details')];
    if (after.length === before.length) after.forEach((one, i) => { one.open = before[i]; });
  }

  // What deserves attention in one run.
  alone(run, number) {
    const { runs, comparisons } = this.app.data;
    const only = !comparisons.length && runs.length === 1;
    const list = run.findings.map((one, i) => this.finding(one, number, i === 0 && only));
    if (!list.length) return null;
    if (only) return h('ul', { class: 'findings' }, list);
    const serious = run.findings.filter((one) => one.level !== 'info').length;
    return h('details', { open: !comparisons.length }, h('summary', {}, `${run.name} by itself: `,
      serious ? `${plural(serious, 'thing')} to look at` : 'nothing stands out'), h('ul', {}, list));
  }

  // Of several comparisons a line each; what lies behind a line opens.
  verdicts(comparisons) {
    return comparisons.map((one, i) => h('details', { open: i === 0 },
      h('summary', { class: `answer ${one.verdict}` }, h('span', { class: 'sentence' },
        h('span', { class: `verdict ${one.verdict}` }, one.verdict), ` ${one.b}: ${partsText(one)}`)),
      this.verdict(one, i)));
  }

  finding(one, number, first) {
    const text = first ? h('strong', {}, one.text) : one.text;
    const go = one.line >= 0 && button('show', () => this.app.select({ run: number, line: one.line, column: one.column >= 0 ? one.column : undefined, reveal: true }),
      { 'aria-label': `Show: ${one.text}` });
    return h('li', { class: one.level }, text, ' ', go);
  }

  verdict(one, i) {
    const { first } = one;
    const head = h('p', { class: 'sentence' }, h('span', { class: `verdict ${one.verdict}` }, one.verdict), ' ', h('strong', {}, one.sentence));
    const counts = one.counts;
    const facts = [`${whole(counts.identical)} of ${plural(counts.matched, 'matched record')} are bit-equal`,
      counts.only_a && `${whole(counts.only_a)} only in ${one.a}`, counts.only_b && `${whole(counts.only_b)} only in ${one.b}`].filter(Boolean);
    const go = first && first.line >= 0 && button(`show the first difference: step ${first.step}, ${first.title}`,
      () => this.app.select({ run: 0, line: first.line, column: first.column, contrast: i, reveal: true }));
    const where = h('div', { class: 'where' },
      h('p', { class: 'about' }, `${one.a} (reference) against ${one.b}: ${facts.join('; ')}.`), go,
      one.notes.length > 0 && h('ul', { class: 'notes' }, one.notes.map((note) => h('li', {}, note))),
      one.origins.length > 0 && this.origins(one, i));
    return h('div', { class: `answer ${one.verdict}` }, head,
      h('div', { class: 'beside' }, where, changesOf(one)),
      one.renamed.length > 0 && h('details', {}, h('summary', {}, `${plural(one.renamed.length, 'tensor')} under another name`),
        h('ul', {}, one.renamed.map(([a, b, how]) => h('li', {}, h('code', {}, a), ' is ', h('code', {}, b), ` (${how})`)))));
  }

  origins(one, i) {
    const place = (origin) => {
      const cell = origin.line * this.app.data.runs[0].columns.length + origin.column;
      const found = origin.line >= 0 && one.footprints.find((some) => some.cell === cell);
      return found && `differs in ${footprintText(found)}`;
    };
    const row = (origin) => [h('tr', {},
      h('th', { scope: 'row' }, origin.line >= 0
        ? button(origin.title, () => this.app.select({ run: 0, line: origin.line, column: origin.column, contrast: i, reveal: true }), { class: 'name' })
        : origin.title),
      h('td', {}, `step ${origin.step}, pass ${origin.pass_index}${origin.call ? `, call ${origin.call}` : ''}${origin.rank ? `, rank ${origin.rank}` : ''}`),
      h('td', {}, origin.class.replace('_', ' ')),
      h('td', { class: 'right' }, figure(origin.error_eps, 3)),
      h('td', { class: 'right' }, percent(origin.share_differing)),
      h('td', { class: 'right' }, origin.max_ulp === null ? '–' : whole(origin.max_ulp))),
    h('tr', { class: 'why' }, h('td', { colspan: 6 }, [origin.ops.join(' ← '), origin.why, place(origin)].filter(Boolean).join('; ') || '–'))];
    return h('details', { open: one.origins.length <= 3 }, h('summary', {}, plural(one.origins.length, 'origin'), ': differences that no recorded parent explains'),
      h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Origins of ${one.b}` }, h('table', { class: 'origins' },
        h('thead', {}, h('tr', {}, ['tensor', 'where', 'class', 'error, eps', 'elements', 'max ULP'].map((text) => h('th', { scope: 'col' }, text)))),
        h('tbody', {}, one.origins.slice(0, ORIGINS_SHOWN).flatMap(row)))),
      one.origins.length > ORIGINS_SHOWN && h('p', { class: 'about' }, `The first ${ORIGINS_SHOWN} in order of execution are listed.`),
      one.origins.length > 3 && csvButton('origins', () => originRows(one)));
  }
}
