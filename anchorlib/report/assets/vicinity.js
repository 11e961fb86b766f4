// The operations around an origin, drawn for both runs side by side; red where they part.

const BOX = { width: 152, height: 40, across: 14, down: 30, passing: 8 };

function vicinitiesOf(one) {
  return one.vicinities.length > 0 && h('div', { class: 'vicinities' },
    one.vicinities.map((found) => {
      const origin = one.origins[found.origin];
      return h('details', { open: found === one.vicinities[0] },
        h('summary', {}, `Operations around ${origin.title}, step ${origin.step}`),
        h('div', { class: 'vicinity' }, found.sides.map((side) => h('figure', {},
          h('figcaption', {}, h('code', {}, side.run)), vicinityMap(side, origin)))),
        h('p', { class: 'about' }, vicinityLegend(found.sides, origin)));
    }));
}

function vicinityLegend(sides, origin) {
  const parts = sides.some((side) => side.nodes.some((node) => node.differs));
  return `Inputs stand above. ${parts ? 'Red, with ≠: the other run does not run it so. ' : 'Both runs ran the same operations here. '}`
    + `Thick border: made ${origin.title}. Views are left out.`;
}

// What the drawing shows, for those who do not see it.
function vicinityText(side, origin) {
  const told = side.nodes.map((node, at) => {
    const makers = side.edges.filter(([, taker]) => taker === at).map(([maker]) => side.nodes[maker].label);
    return [`${node.label} in ${node.module || node.stage}`, makers.length > 0 && `from ${makers.join(' and ')}`,
      node.end && `makes ${origin.title}`, node.differs].filter(Boolean).join(', ');
  });
  return `Operations of ${side.run} around ${origin.title}: ${told.join('; ')}`;
}

function vicinityMap(side, origin) {
  const size = (one) => (one < 0 ? BOX.passing : BOX.width) + BOX.across;
  const sizes = side.rows.map((row) => row.reduce((sum, one) => sum + size(one), 0));
  const width = Math.max(...sizes) + BOX.across;
  const height = side.rows.length * (BOX.height + BOX.down) - BOX.down + 16;
  // The middle of each node, and of each place where an edge crosses a row, at its upper end.
  const at = new Map();
  side.rows.forEach((row, number) => {
    let x = (width - sizes[number]) / 2;
    for (const one of row) {
      at.set(`${number} ${one}`, { x: x + size(one) / 2, y: 8 + number * (BOX.height + BOX.down) });
      x += size(one);
    }
  });
  const rowOf = (node) => side.rows.findIndex((row) => row.includes(node));
  const edge = ([maker, taker, tensor], number) => {
    const bend = BOX.down * 0.7, rows = [rowOf(maker), rowOf(taker)];
    let d = '';
    for (let row = rows[0]; row < rows[1]; row += 1) {
      const from = at.get(`${row} ${row === rows[0] ? maker : -1 - number}`);
      const to = at.get(`${row + 1} ${row + 1 === rows[1] ? taker : -1 - number}`), y = from.y + BOX.height;
      d += `${d ? `V${y}` : `M${from.x} ${y}`}C${from.x} ${y + bend} ${to.x} ${to.y - bend} ${to.x} ${to.y}`;
    }
    return s('path', { class: 'edge', d }, s('title', {}, tensor));
  };
  return s('svg', { role: 'img', 'aria-label': vicinityText(side, origin), viewBox: `0 0 ${width} ${height}`, width, height },
    side.edges.map(edge), side.nodes.map((node, number) => vicinityBox(node, at.get(`${rowOf(number)} ${number}`))));
}

function vicinityBox(node, { x, y }) {
  const shown = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const classes = ['box', node.differs && 'differs', node.end && 'end'].filter(Boolean).join(' ');
  const place = node.module ? `${node.stage} ${node.module}` : node.stage;
  return s('g', { class: classes, transform: `translate(${x - BOX.width / 2} ${y})` },
    s('title', {}, [`${node.label}, ${place}`, ...node.told, node.differs].filter(Boolean).join('\n')),
    s('rect', { width: BOX.width, height: BOX.height, rx: 4 }),
    s('text', { x: 8, y: 17, class: 'what' }, shown(node.differs ? `≠ ${node.label}` : node.label, 19)),
    s('text', { x: 8, y: 32 }, shown(place, 24)));
}
