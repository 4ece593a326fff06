// The plots over time of each recording: all of them show the same span of time, which a slider
// moves. Of what lies in it, each draws as many points as can be told apart, extremes included.
const {times, recordings} = JSON.parse(document.getElementById("series").textContent);
const coarse = window.matchMedia("(pointer: coarse)").matches;
const MOST_POINTS = 1200, MOST_COLUMNS = 700, MOST_CHUNKS = 40;
const FRESH = 0.99, STALE = 1.05, NO_MESSAGE = 1.2;
const AGES = [[0, "#e6f0fa"], [0.832, "#2f6fb0"], [0.834, "#d55e00"], [0.916, "#d55e00"],
  [0.918, "#333"], [1, "#333"]];

function numbers(words, kind) {
  const text = atob(words), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new kind(bytes.buffer);
}

const seconds = times.map((words) => numbers(words, Int32Array));

// First index whose value is not below the given one.
function search(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

// The same rule as on the way into the page: smallest, largest and one gap of each span.
function thin(values, first, last, most) {
  const kept = [];
  const width = Math.ceil((last - first) / (most / 3));
  for (let begin = first; begin < last; begin += Math.max(1, width)) {
    if (width <= 1) { kept.push(begin); continue; }
    let low = -1, high = -1, gap = -1;
    for (let i = begin; i < Math.min(begin + width, last); i++) {
      if (Number.isNaN(values[i])) { if (gap < 0) gap = i; continue; }
      if (low < 0 || values[i] < values[low]) low = i;
      if (high < 0 || values[i] > values[high]) high = i;
    }
    const found = [...new Set([low, high, gap])].filter((i) => i >= 0);
    kept.push(...found.sort((a, b) => a - b));
  }
  return kept;
}

class Line {
  constructor(spec, tick) {
    this.spec = spec;
    this.tick = tick;
    this.x = seconds[spec.x];
    this.y = numbers(spec.y, Float32Array);
  }

  trace(from, to) {
    const first = Math.max(0, search(this.x, from / this.tick) - 1);
    const last = Math.min(this.x.length, search(this.x, to / this.tick) + 1);
    const kept = thin(this.y, first, last, MOST_POINTS);
    const {name, color, dash, width} = this.spec;
    return {
      type: "scatter", mode: kept.length > 1 ? "lines" : "markers", name,
      x: kept.map((i) => this.x[i] * this.tick),
      y: kept.map((i) => (Number.isNaN(this.y[i]) ? null : this.y[i])),
      line: {color, dash, width}, marker: {color},
      hovertemplate: "%{y:.5g}",
    };
  }
}

// The chunks of one policy and joint: drawn only where there are few enough to be told apart.
class Chunks {
  constructor(spec, tick) {
    this.spec = spec;
    this.starts = numbers(spec.starts, Int32Array);
    this.rows = numbers(spec.rows, Float32Array);
    this.tick = tick;
  }

  traces(from, to) {
    const {horizon, period_s, color, name} = this.spec, length = horizon * period_s;
    const first = search(this.starts, (from - length) / this.tick);
    const last = search(this.starts, to / this.tick);
    if (last - first > MOST_CHUNKS || last === first) return [];
    const x = [], y = [];
    for (let chunk = first; chunk < last; chunk++) {
      for (let row = 0; row < horizon; row++) {
        const value = this.rows[chunk * horizon + row];
        if (Number.isNaN(value)) break;
        x.push(this.starts[chunk] * this.tick + row * period_s);
        y.push(value);
      }
      x.push(null);
      y.push(null);
    }
    return [{
      type: "scatter", mode: "lines", name: `${name}, chunks`, x, y,
      line: {color, width: 1}, opacity: 0.45, hoverinfo: "skip",
    }];
  }
}

const GRID = {gridcolor: "#e4e4e4", linecolor: "#999", zeroline: false, automargin: true};

function layout(view, y) {
  const bands = view.spec.bands.map(([x0, x1]) => ({
    type: "rect", yref: "paper", y0: 0, y1: 1, x0, x1, layer: "below", line: {width: 0},
    fillcolor: "rgba(120, 120, 120, 0.22)",
  }));
  const marks = view.spec.marks.map((x) => ({
    type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, layer: "below",
    line: {color: "#888", width: 1, dash: "dot"},
  }));
  return {
    font: {family: "system-ui, sans-serif", size: 12, color: "#222"},
    paper_bgcolor: "#fff", plot_bgcolor: "#fff", showlegend: false,
    margin: {l: 58, r: 12, t: 8, b: 38}, hovermode: "x unified",
    dragmode: coarse ? false : "zoom",
    xaxis: {...GRID, range: [view.from, view.to], title: {text: "time (s)", standoff: 4}},
    yaxis: {...GRID, fixedrange: true, title: {text: y, standoff: 6}},
    shapes: [...bands, ...marks],
  };
}

class Curves {
  constructor(spec, tick) {
    this.spec = spec;
    this.lines = {};
    for (const [what, lines] of Object.entries(spec.lines)) {
      this.lines[what] = lines.map((line) => new Line(line, tick));
    }
    this.chunks = (spec.chunks || []).map((chunks) => new Chunks(chunks, tick));
  }

  figure(view) {
    const what = this.lines[view.what] ? view.what : "values";
    const shown = (line) => !view.hidden.has(line.spec.group);
    const data = this.lines[what].filter(shown).map((line) => line.trace(view.from, view.to));
    if (view.chunks && what === "values") {
      for (const chunks of this.chunks.filter(shown)) {
        data.unshift(...chunks.traces(view.from, view.to));
      }
    }
    const full = layout(view, this.spec.y[what]);
    if (this.spec.limit) {
      full.shapes.push({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: this.spec.limit, y1: this.spec.limit,
        line: {color: "#222", width: 1, dash: "dash"},
      });
    }
    if (what === "errors") full.yaxis = {...full.yaxis, zeroline: true, zerolinecolor: "#999"};
    return {data, layout: full};
  }
}

// One lane an input: its age as a fraction of the limit, in bands with spans of time as columns.
class Lanes {
  constructor(spec, tick) {
    this.spec = spec;
    this.edges = numbers(spec.edges, Int32Array);
    this.tick = tick;
    this.ages = spec.lanes.map((lane) => numbers(lane.ages, Float32Array));
  }

  figure(view) {
    const first = Math.max(0, search(this.edges, view.from / this.tick) - 1);
    const last = Math.min(this.edges.length - 1, search(this.edges, view.to / this.tick) + 1);
    const width = Math.max(1, Math.ceil((last - first) / MOST_COLUMNS));
    const x = [], rows = this.ages.map(() => []), texts = this.ages.map(() => []);
    for (let begin = first; begin < last; begin += width) {
      const end = Math.min(begin + width, last);
      x.push(this.edges[begin] * this.tick);
      this.ages.forEach((ages, lane) => {
        let worst = 0, stale = false;
        for (let i = begin; i < end; i++) {
          stale = stale || ages[i] < 0;  // the sign says so
          worst = Math.max(worst, Math.abs(ages[i]));  // NaN wins
        }
        const {name, scale_ms} = this.spec.lanes[lane];
        const missing = Number.isNaN(worst);
        rows[lane].push(missing ? NO_MESSAGE : stale ? STALE : Math.min(FRESH, worst / scale_ms));
        const words = missing ? "no message yet" : `${worst.toPrecision(4)} ms old`;
        texts[lane].push(`${name}: ${words}${stale ? ", stale" : ""}`);
      });
      if (end === last) x.push(this.edges[last] * this.tick);
    }
    const z = [], text = [], y = [0];
    rows.forEach((row, lane) => {
      z.push(row, row.map(() => null));
      text.push(texts[lane], row.map(() => ""));
      y.push(lane + 0.55, lane + 1);
    });
    const full = layout(view, "");
    full.shapes = [];
    full.hovermode = "closest";
    full.margin = {...full.margin, l: 12};
    full.yaxis = {
      visible: false, fixedrange: true, range: [0, this.ages.length], autorange: false,
    };
    full.annotations = this.spec.lanes.map((lane, i) => ({
      xref: "paper", x: 0, xanchor: "left", y: i + 0.52, yanchor: "bottom", showarrow: false,
      text: lane.title, font: {size: 12}, align: "left",
    }));
    const data = [{
      type: "heatmap", x, y, z, text, zmin: 0, zmax: NO_MESSAGE, colorscale: AGES,
      showscale: false, hovertemplate: "%{text}<extra></extra>", hoverongaps: false,
    }];
    return {data, layout: full};
  }
}

class View {
  constructor(spec) {
    this.spec = spec;
    this.from = 0;
    this.to = spec.end_s;
    this.what = "values";
    this.chunks = true;
    this.hidden = new Set();
    this.box = document.getElementById(spec.id);
    this.control = (name) => this.box.querySelector(`.${name}`);
    this.plots = spec.plots.map((plot) => ({
      div: document.getElementById(plot.id), stale: true, near: false, heard: false,
      drawing: new (plot.kind === "lanes" ? Lanes : Curves)(plot, spec.tick_s),
    }));
    this.listen();
    this.refresh();
  }

  listen() {
    const span = this.control("span"), slider = this.control("from");
    span.addEventListener("change", () => {
      const length = Number(span.value) || this.spec.end_s;
      this.show(Math.min(this.from, this.spec.end_s - length), length);
    });
    slider.addEventListener("input", () => {
      // There is nowhere to go while all is shown: then the slider also narrows the view.
      const shown = this.to - this.from, end = this.spec.end_s;
      const length = shown < end ? shown : end / 10;
      this.show(slider.value / 1000 * (end - length), length);
    });
    this.control("what").addEventListener("change", (event) => {
      this.what = event.target.value;
      this.changed();
    });
    for (const box of this.box.querySelectorAll("input[data-group]")) {
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(box.dataset.group);
        else this.hidden.add(box.dataset.group);
        this.changed();
      });
    }
    const chunks = this.control("chunks");
    if (chunks) {
      chunks.addEventListener("change", () => { this.chunks = chunks.checked; this.changed(); });
    }
    // What is out of sight is drawn when it comes near.
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        this.plots.find((plot) => plot.div === entry.target).near = entry.isIntersecting;
      }
      this.refresh();
    }, {rootMargin: "150px"});
    for (const plot of this.plots) watcher.observe(plot.div);
    window.addEventListener("beforeprint", () => {
      for (const plot of this.plots) plot.near = true;
      this.draw();
    });
  }

  show(from, length) {
    this.from = Math.max(0, Math.min(from, this.spec.end_s - length));
    this.to = Math.min(this.spec.end_s, this.from + length);
    this.changed();
  }

  changed() {
    for (const plot of this.plots) {
      plot.stale = true;
      delete plot.div.dataset.drawn;
    }
    this.refresh();
  }

  refresh() {
    const length = this.to - this.from, whole = length >= this.spec.end_s;
    const room = this.spec.end_s - length;
    this.control("from").value = whole ? 0 : Math.round(1000 * this.from / room);
    this.control("now").textContent = `${this.from.toFixed(1)} to ${this.to.toFixed(1)} s`;
    const span = this.control("span");
    const named = [...span.options].find((option) => Number(option.value) === length);
    span.value = whole ? "0" : named ? named.value : "other";
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    for (const plot of this.plots.filter((plot) => plot.near && plot.stale)) {
      const {data, layout: full} = plot.drawing.figure(this);
      Plotly.react(plot.div, data, full, {
        responsive: true, displayModeBar: false,
      });
      if (!plot.heard) plot.div.on("plotly_relayout", (change) => this.zoomed(change));
      plot.heard = true;
      plot.div.dataset.drawn = `${this.from} ${this.to}`;
      plot.stale = false;
    }
  }

  zoomed(change) {
    if (change["xaxis.autorange"]) this.show(0, this.spec.end_s);
    const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
    if (from !== undefined && to > from) this.show(from, to - from);
  }
}

for (const recording of recordings) new View(recording);
