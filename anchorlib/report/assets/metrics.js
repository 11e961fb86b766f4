// What a cell of the overview can show: figures of a run, or differences between two.

function finite(run, i) {
  const { numel, nan, inf } = run.figures;
  return numel[i] - nan[i] - inf[i];
}

function seen(run, i) {
  return run.figures.records[i] > 0;
}

function largest(run, i) {
  return Math.max(Math.abs(run.figures.min[i]), Math.abs(run.figures.max[i]));
}

function deviation(run, i) {
  const n = finite(run, i), mean = run.figures.sum[i] / n;
  return Math.sqrt(Math.max(run.figures.l2[i] ** 2 / n - mean ** 2, 0));
}

// The line of a parameter's value that its delta is measured against; -1 where there is none.
function weightOf(run, row) {
  run.weights ||= weightsOf(run);
  return run.weights[row];
}

function weightsOf(run) {
  const rows = new Map();
  run.lines.forEach((one, row) => rows.set(JSON.stringify(one.key), row));
  return run.lines.map((one) => {
    const [name, kind, mode, phase] = one.key;
    if (kind !== 'delta') return -1;
    const found = ['value', 'updated'].map((k) => rows.get(JSON.stringify([name, k, mode, phase])));
    return found.find((row) => row !== undefined) ?? -1;
  });
}

function ratio(run, row, column) {
  const weight = weightOf(run, row);
  if (weight < 0) return NaN;
  const at = run.columns.length;
  const size = run.figures.l2[weight * at + column];
  return size > 0 ? run.figures.l2[row * at + column] / size : NaN;
}

// value(run, row, column, i): what is shown; log: coloured by its logarithm, zeros apart.
const METRICS = {
  rms: { text: 'root mean square', log: true, value: (run, r, c, i) => run.figures.l2[i] / Math.sqrt(finite(run, i)) },
  norm: { text: 'L2 norm', log: true, value: (run, r, c, i) => run.figures.l2[i] },
  ratio: { text: 'update-to-weight ratio', log: true, value: (run, r, c) => ratio(run, r, c) },
  largest: { text: 'largest magnitude', log: true, value: (run, r, c, i) => largest(run, i) },
  mean: { text: 'magnitude of the mean', log: true, value: (run, r, c, i) => Math.abs(run.figures.sum[i] / finite(run, i)) },
  deviation: { text: 'standard deviation', log: true, value: (run, r, c, i) => deviation(run, i) },
  zero: { text: 'share of zeros', share: true, value: (run, r, c, i) => run.figures.zero[i] / run.figures.numel[i] },
  bad: { text: 'share of NaN and infinities', share: true, value: (run, r, c, i) => (run.figures.nan[i] + run.figures.inf[i]) / run.figures.numel[i] },
};
const CONTRASTS = {
  error: { text: 'relative error, in eps', log: true },
  share_differing: { text: 'share of elements that differ', share: true },
  max_abs: { text: 'largest difference', log: true },
};

// Values of all lines that have any: {rows (line of each), values, columns}
function measuredRun(run, metric, lines) {
  const columns = run.columns.length;
  const values = new Float64Array(lines.length * columns).fill(NaN);
  lines.forEach((row, at) => {
    for (let c = 0; c < columns; c++) {
      const i = row * columns + c;
      if (seen(run, i)) values[at * columns + c] = metric.value(run, row, c, i);
    }
  });
  return values;
}

function coloredRun(run, metric, lines, values) {
  const columns = run.columns.length;
  const shown = metric.log ? values.map((v) => (v > 0 ? Math.log10(v) : NaN)) : values;
  const [low, high] = metric.share ? [0, 1] : rampEnds(extent(shown));
  const levels = leveled(shown, low, high);
  lines.forEach((row, at) => {
    for (let c = 0; c < columns; c++) {
      const i = row * columns + c, j = at * columns + c;
      if (!seen(run, i)) continue;
      if (run.figures.nan[i] + run.figures.inf[i] > 0) levels[j] = LEVEL.nonfinite;
      else if (metric.log && values[j] === 0) levels[j] = LEVEL.equal;
    }
  });
  return { levels, low, high };
}

// The place of a cell among those that differ; -1.
function placeOf(contrast, cell) {
  const cells = contrast.cell;
  let low = 0, high = cells.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (cells[middle] === cell) return middle;
    if (cells[middle] < cell) low = middle + 1; else high = middle - 1;
  }
  return -1;
}

// The grid of a comparison in one of its figures; EQUAL, UNMEASURED and NONFINITE stay.
const EQUAL = -1, UNMEASURED = -2, NONFINITE = -3;

function contrastValues(contrast, name) {
  if (name === 'error') return contrast.grid;
  const values = Float64Array.from(contrast.grid, (v) => (v >= 0 ? UNMEASURED : v));
  contrast.cell.forEach((cell, place) => {
    if (values[cell] === UNMEASURED && contrast.details[name][place] >= 0) values[cell] = contrast.details[name][place];
  });
  return values;
}

function coloredContrast(grid, metric) {
  const shown = Float64Array.from(grid, (v) => (v > 0 ? (metric.log ? Math.log10(v) : v) : NaN));
  const [low, high] = metric.share ? [0, 1] : rampEnds(extent(shown));
  const levels = leveled(shown, low, high);
  grid.forEach((v, i) => {
    if (v === EQUAL) levels[i] = LEVEL.equal;
    else if (v === UNMEASURED) levels[i] = LEVEL.unknown;
    else if (v === NONFINITE) levels[i] = LEVEL.nonfinite;
    else if (v === 0) levels[i] = LEVEL.low;
  });
  return { levels, low, high };
}
