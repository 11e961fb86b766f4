// Numbers as people read them; nothing is rounded to a false zero.

const SUPERSCRIPTS = { '-': '⁻', 0: '⁰', 1: '¹', 2: '²', 3: '³', 4: '⁴', 5: '⁵', 6: '⁶', 7: '⁷', 8: '⁸', 9: '⁹' };

function power(exponent, base = 2) {
  return base + String(exponent).replace(/[-0-9]/g, (c) => SUPERSCRIPTS[c]);
}

function whole(count) {
  return Math.round(count).toLocaleString('en-US');
}

function figure(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  if (value === 0) return '0';
  const size = Math.abs(value);
  const text = size >= 1e-3 && size < 1e6
    ? String(Number(value.toPrecision(digits)))
    : value.toExponential(digits - 1).replace(/\.?0+e/, 'e').replace('e+', 'e');
  return text.replace('-', '−');
}

function percent(share) {
  if (!Number.isFinite(share)) return '–';
  if (share === 0) return '0 %';
  const text = 100 * share;
  if (text < 0.001) return '< 0.001 %';
  if (text > 99.999 && text < 100) return '> 99.999 %';
  return `${Number(text.toPrecision(text > 99 ? 5 : 3))} %`;
}

function bytesText(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let place = 0;
  while (count >= 1024 && place < units.length - 1) { count /= 1024; place++; }
  return `${place ? count.toFixed(1) : count} ${units[place]}`;
}

function plural(count, word) {
  return `${whole(count)} ${word}${count === 1 ? '' : 's'}`;
}

// Round values between two, about `most` of them, at 1, 2 or 5 times a power of ten.
function ticks(low, high, most) {
  const span = (high - low) / Math.max(most, 1);
  if (!(span > 0)) return [low];
  const unit = 10 ** Math.floor(Math.log10(span));
  const step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= span);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

// The ends of an axis over values between low and high (logarithms where `log`). They are never
// nearer to each other than 5 % of the values' level: rounding must not fill the axis like a trend.
const LEAST_SPAN = 0.05;

function axisEnds(low, high, log) {
  if (!(low <= high)) return [0, 1];
  const level = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const span = Math.max(high - low, log ? Math.log10(1 + LEAST_SPAN) : LEAST_SPAN * level);
  const middle = low + (high - low) / 2;
  return [middle - 0.55 * span, middle + 0.55 * span];
}
