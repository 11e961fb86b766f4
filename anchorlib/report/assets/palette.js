// Colours of both themes. A heat map holds one byte a cell: what it says, or how much.

const LEVEL = { none: 0, equal: 1, unknown: 2, low: 3, high: 252, infinite: 253, nonfinite: 254 };

const RAMPS = {
  light: ['#d3e5f5', '#6aaed6', '#2171b5', '#08306b'],
  dark: ['#33415c', '#2a788e', '#35b779', '#fde725'],
};
const SPECIAL = {
  light: { equal: '#eef4ee', unknown: '#e0a030', infinite: '#5e1a7a', nonfinite: '#d3203a' },
  dark: { equal: '#1d2a24', unknown: '#c9892a', infinite: '#d48cff', nonfinite: '#ff4d64' },
};
const RUN_COLORS = {
  light: ['#1f6fb2', '#c2570c', '#15803d', '#8b2fa8', '#a16207', '#0e7490'],
  dark: ['#6cb6ff', '#ff9d57', '#5fd38a', '#d48cff', '#f2cc60', '#5cc9dd'],
};

const darkness = matchMedia('(prefers-color-scheme: dark)');

function theme() {
  return darkness.matches ? 'dark' : 'light';
}

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function runColor(number) {
  const colors = RUN_COLORS[theme()];
  return colors[number % colors.length];
}

function rgb(color) {
  return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
}

function rampColor(part) {
  const stops = RAMPS[theme()].map(rgb);
  const place = Math.min(Math.max(part, 0), 1) * (stops.length - 1);
  const from = Math.min(Math.floor(place), stops.length - 2);
  return stops[from].map((c, i) => Math.round(c + (stops[from + 1][i] - c) * (place - from)));
}

// One opaque pixel a level, in the byte order of ImageData on every machine with browsers.
function palette() {
  const colors = new Uint32Array(256);
  const pixel = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  for (let level = LEVEL.low; level <= LEVEL.high; level++) {
    colors[level] = pixel(rampColor((level - LEVEL.low) / (LEVEL.high - LEVEL.low)));
  }
  for (const [name, color] of Object.entries(SPECIAL[theme()])) colors[LEVEL[name]] = pixel(rgb(color));
  return colors;
}

// Each value's level between low and high; NaN is no record.
function leveled(values, low, high) {
  const levels = new Uint8Array(values.length);
  const span = LEVEL.high - LEVEL.low;
  const unit = high > low ? span / (high - low) : 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value !== value) continue;
    if (value === Infinity) levels[i] = LEVEL.infinite;
    else levels[i] = LEVEL.low + Math.min(Math.max(Math.round((value - low) * unit), 0), span);
  }
  return levels;
}

// The ends of a ramp over logarithms: what is one value up to rounding has one colour, the darkest.
function rampEnds([low, high]) {
  return [Math.min(low, high - Math.log10(1 + LEAST_SPAN)), high];
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low && value > -Infinity) low = value;
    if (value > high && value < Infinity) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}
