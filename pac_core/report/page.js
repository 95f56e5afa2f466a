"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg", WIDE = 640, LEFT = 62, RIGHT = 626, TOP = 14;

function make(name, attributes, ...inside) {
  const node = name in {svg: 0, g: 0, line: 0, text: 0, polyline: 0, polygon: 0, circle: 0, title: 0}
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...inside);
  return node;
}
const say = (value, digits = 4) => value === null || value === undefined ? "none" : String(Number(value.toPrecision(digits)));

// From numbers to places, with some room at the ends.
function axis(values, first, last, room) {
  const known = values.filter(value => value !== null && Number.isFinite(value));
  let least = Math.min(...known), most = Math.max(...known);
  const more = (most - least || 1) * room;
  least -= more; most += more;
  const place = value => first + (last - first) * (value - least) / (most - least || 1);
  const rough = (most - least) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(each => each * power).find(each => each >= rough * 0.999);
  place.ticks = [];
  for (let i = Math.ceil(least / step - 1e-9); i * step <= most + 1e-9 * step; i++) place.ticks.push(i * step);
  return place;
}
function frame(svg, across, up, floor, x, y, top = TOP) {
  for (const value of up.ticks) svg.append(
    make("line", {class: "grid", x1: LEFT, x2: RIGHT, y1: up(value), y2: up(value)}),
    make("text", {class: "tick end", x: LEFT - 8, y: up(value) + 4}, say(value)));
  for (const value of across.ticks.filter(tick => x !== "step" || Number.isInteger(tick))) svg.append(make("text", {class: "tick", x: across(value), y: floor + 16}, say(value)));
  svg.append(make("text", {class: "axis", x: (LEFT + RIGHT) / 2, y: floor + 36}, x),
    make("text", {class: "axis", transform: `translate(14 ${(top + floor) / 2}) rotate(-90)`}, y));
}
// Lines are broken where a number is missing.
function pieces(points) {
  const found = [[]];
  for (const point of points) point[1] === null ? found.push([]) : found[found.length - 1].push(point);
  return found.filter(piece => piece.length);
}
function polyline(points, across, up, attributes) {
  return pieces(points).map(piece => make("polyline",
    {...attributes, points: piece.map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`).join(" ")}));
}
function choice(label, names, change) {
  const select = make("select", {}, ...names.map((name, i) => make("option", {value: i}, name)));
  select.addEventListener("change", () => change(Number(select.value)));
  return make("label", {}, label, select);
}
function slider(label, last, change) {
  const input = make("input", {type: "range", min: 0, max: last, value: 0, "aria-label": label});
  input.addEventListener("input", () => change(Number(input.value)));
  const button = make("button", {type: "button"}, "Play");
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
  const move = to => { input.value = to; change(to); };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    button.textContent = "Pause";
    if (Number(input.value) >= last) move(0);
    timer = setInterval(() => Number(input.value) >= last ? stop() : move(Number(input.value) + 1), slider.pace);
  });
  return {move, set: to => { input.value = to; }, nodes: [make("label", {}, label, input), button], button};
}

function tubes(root, data) {
  let unit = 0, dim = 0, step = 0;
  const svg = make("svg", {class: "chart", viewBox: `0 0 ${WIDE} 320`, role: "img"});
  const readout = make("p", {class: "readout", "aria-live": "polite"}), floor = 276;
  function binding(one) {
    let found = null;
    for (const limit of data.limits) one.low.forEach((_, t) => {
      const end = (limit.upper ? one.high : one.low)[t][limit.dim];
      if (end === null) return;
      const margin = limit.upper ? limit.bound - end : end - limit.bound;
      if (found === null || margin < found.margin) found = {margin, t, limit};
    });
    return found;
  }
  function exit(one) {
    for (let t = 0; t < one.low.length; t++) for (let d = 0; d < data.names.length; d++) {
      const [y, low, high] = [one.truth, one.low, one.high].map(rows => rows[t][d]);
      if (y !== null && ((low !== null && y < low) || (high !== null && y > high))) return {t, d};
    }
    return null;
  }
  function pick_unit(to) {
    unit = to;
    const out = data.units[to].inside ? null : exit(data.units[to]);
    if (out !== null) { dim = out.d; step = out.t; numbers.querySelector("select").value = dim; time.set(step); }
    draw();
  }
  function draw() {
    const one = data.units[unit], name = data.names[dim], pick = rows => rows.map((row, t) => [t + 1, row[dim]]);
    const limits = data.limits.filter(limit => limit.dim === dim), last = one.low.length;
    const [low, high, mean, truth] = [one.low, one.high, one.mean, one.truth].map(pick);
    const across = axis([1, last], LEFT, RIGHT, 0.02);
    const all = [...low, ...high, ...truth].map(point => point[1]).concat(limits.map(limit => limit.bound));
    const up = axis(all, floor, TOP, 0.06);
    svg.replaceChildren();
    frame(svg, across, up, floor, "step", name);
    const ends = high.filter(p => p[1] !== null).concat(low.filter(p => p[1] !== null).reverse());
    svg.append(make("g", {class: "ink-0"},
      make("polygon", {class: "band", points: ends.map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`).join(" ")}),
      ...polyline(mean, across, up, {class: "later"})));
    svg.append(make("g", {class: "ink-3"}, ...polyline(truth.slice(0, step + 1), across, up, {}),
      ...polyline(truth.slice(step), across, up, {class: "later"})));
    for (const limit of limits) svg.append(make("line",
      {class: "limit", x1: LEFT, x2: RIGHT, y1: up(limit.bound), y2: up(limit.bound)},
      make("title", {}, `limit: ${name} ${limit.upper ? "at most" : "at least"} ${say(limit.bound)}`)));
    svg.append(make("line", {class: "cursor", x1: across(step + 1), x2: across(step + 1), y1: TOP, y2: floor}));
    truth.forEach(([x, y], t) => { if (y !== null) svg.append(make("circle", {class: "spot ink-3", cx: across(x), cy: up(y), r: 7},
      make("title", {}, `step ${x}: truth ${say(y)}, tube ${say(low[t][1])} to ${say(high[t][1])}`))); });
    const left = one.inside ? null : exit(one);
    const text = `Step ${step + 1}, ${name}: forecast ${say(mean[step][1])}, tube ${say(low[step][1])} to `
      + `${say(high[step][1])}, truth ${say(truth[step][1])}. This unit ${one.inside ? "was inside its tube at every step" : left === null ? "was outside its tube, all numbers together"
      : `left its tube at step ${left.t + 1}, in ${data.names[left.d]}`}.`;
    const tight = binding(one);
    readout.textContent = text + (tight === null ? "" : ` Nearest to a limit: step ${tight.t + 1}, where ${data.names[tight.limit.dim]} may `
      + `reach ${say(tight.limit.upper ? tight.limit.bound - tight.margin : tight.limit.bound + tight.margin)}; the limit is ${say(tight.limit.bound, 5)}.`);
    svg.setAttribute("aria-label", text);
  }
  const numbers = choice("number", data.names, to => { dim = to; draw(); });
  const time = slider("step", data.units[0].low.length - 1, to => { step = to; draw(); });
  const legend = make("ul", {class: "legend"}, make("li", {class: "ink-0 band"}, "tube"),
    make("li", {class: "ink-0 later"}, "forecast mean"), make("li", {class: "ink-3"}, "what happened (dotted: still to come)"),
    ...(data.limits.length ? [make("li", {class: "limit"}, "limit")] : []));
  root.append(make("div", {class: "controls"},
    choice("unit", data.units.map(one => one.id + (one.inside ? "" : " (missed)")), pick_unit),
    numbers, ...time.nodes), svg, legend, readout);
  slider.pace = 300;
  pick_unit(0);
}

function robots(root, data) {
  let step = 0;
  const lane = 150, floor = data.robots.length * lane, high = floor + 240;
  const svg = make("svg", {class: "chart", viewBox: `0 0 ${WIDE} ${high}`, role: "img"});
  const readout = make("p", {class: "readout", "aria-live": "polite"});
  const last = Math.max(...data.robots.map(one => one.value.length)) - 1;
  const values = data.robots.flatMap(one => [...one.value, ...(one.high || [])]);
  const across = axis([0, (last + 1) * data.dt], LEFT, RIGHT, 0), up = axis([...values, data.bound], high - 44, floor + 20, 0.05);
  function draw() {
    svg.replaceChildren();
    const words = [];
    data.robots.forEach((one, lane_) => {
      const t = Math.min(step, one.frames.length - 1), ground = lane * (lane_ + 1) - 22, scale = data.scale;
      const frame_ = one.frames[t], x0 = one.x[t], over = one.value[t] !== null && one.value[t] > data.bound;
      const g = make("g", {class: over ? "over" : `ink-${lane_ ? 2 : 0}`});
      svg.append(make("line", {class: "ground", x1: 0, x2: WIDE, y1: ground, y2: ground}));
      for (let m = Math.ceil(x0 - 5); m <= x0 + 5; m++) { const x = WIDE / 2 + (m - x0) * scale;
        svg.append(make("line", {class: "ground", x1: x, x2: x, y1: ground, y2: ground + 6}),
          make("text", {class: "tick", x, y: ground + 19}, `${m} m`)); }
      frame_.forEach(([xa, za, xb, zb], i) => g.append(make("line", {class: "body", "stroke-width": 2 * scale * data.radii[i],
        x1: WIDE / 2 + (xa - x0) * scale, y1: ground - za * scale, x2: WIDE / 2 + (xb - x0) * scale, y2: ground - zb * scale})));
      g.append(make("text", {x: 8, y: lane * lane_ + 20, style: "font-weight:600;fill:currentColor"},
        `${one.name}: ${say(one.value[t])} ${data.unit}${over ? ", over the limit" : ""}`));
      svg.append(g);
      words.push(`${one.name} ${say(one.value[t])}`);
    });
    frame(svg, across, up, high - 44, "seconds", data.label, floor + 20);
    data.robots.forEach((one, i) => {
      const at = row => row.map((y, t) => [(t + 1) * data.dt, y]);
      const group = make("g", {class: `ink-${i ? 2 : 0}`}, ...polyline(at(one.value), across, up, {}));
      const over = at(one.value).map(([x, y], t) => [x, [one.value[t - 1], y, one.value[t + 1]].some(v => v > data.bound) && y > data.bound ? y : null]);
      group.append(make("g", {class: "over"}, ...polyline(over, across, up, {})));
      if (one.high) group.append(...polyline(at(one.high), across, up, {class: "later"}));
      svg.append(group);
    });
    svg.append(make("line", {class: "limit", x1: LEFT, x2: RIGHT, y1: up(data.bound), y2: up(data.bound)},
      make("title", {}, `limit: at most ${say(data.bound)}`)),
      make("line", {class: "cursor", x1: across((step + 1) * data.dt), x2: across((step + 1) * data.dt), y1: floor + 20, y2: high - 44}));
    readout.textContent = `After ${say((step + 1) * data.dt)} s, ${data.label}: ${words.join("; ")}; limit ${say(data.bound, 5)}.`;
    svg.setAttribute("aria-label", readout.textContent);
  }
  const time = slider("time", last, to => { step = to; draw(); });
  slider.pace = 50;
  root.append(make("div", {class: "controls"}, ...time.nodes), svg, make("ul", {class: "legend"},
    ...data.robots.flatMap((one, i) => [make("li", {class: `ink-${i ? 2 : 0}`}, one.name)]),
    make("li", {class: "over"}, "over the limit"), make("li", {class: "limit"}, "limit")), readout);
  time.move(Math.min(last, data.start || 0));
}

const kinds = {tubes, robots};
for (const root of document.querySelectorAll(".player")) kinds[root.dataset.kind](root, JSON.parse(root.querySelector("script").textContent));
document.body.dataset.ready = "yes";
})();
