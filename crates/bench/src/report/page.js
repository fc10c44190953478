"use strict";
// What the scripts of all pages have in common: the data, numbers for people, charts.
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  document.body.classList.add("scripted");

  // Numbers for people.
  const digits = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : 2);
  const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });
  const percent = (ratio) => `${(100 * ratio).toFixed(1)} %`;
  const wholePercent = (ratio) => `${+(100 * ratio).toFixed(1)} %`;
  const scaled = (value, units, step) => {
    let unit = 0;
    while (value >= step && unit + 1 < units.length) {
      value /= step;
      unit += 1;
    }
    const text = Number.isInteger(value) ? String(value) : value.toFixed(digits(value));
    return `${text.includes(".") ? text.replace(/\.?0+$/, "") : text} ${units[unit]}`;
  };
  const thousands = (value) => scaled(value, ["", "k", "M", "G"], 1000).trim();
  const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
  const micros = (value) => scaled(value, ["µs", "ms", "s"], 1000);
  const times = (value) => `${value.toFixed(value < 10 ? 2 : 1)}×`;
  const span = (seconds) => {
    if (seconds < 120) return `${+seconds.toFixed(1)} s`;
    if (seconds < 7200) return `${+(seconds / 60).toFixed(1)} min`;
    if (seconds < 172800) return `${+(seconds / 3600).toFixed(1)} h`;
    return `${+(seconds / 86400).toFixed(1)} days`;
  };

  const element = (name, attributes, parent, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };
  const html = (name, parent, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    parent.append(made);
    return made;
  };

  // Round values from 0 to at least `top`; `base` is what a unit is a power of.
  const ticks = (top, base) => {
    if (!(top > 0)) return [0, 1];
    const unit = base ** Math.floor(Math.log(top / 4) / Math.log(base) + 1e-9);
    const steps = base === 10 ? [1, 2, 2.5, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
    const step = unit * steps.find((factor) => unit * factor * 5 >= top);
    const found = [];
    for (let value = 0; value < top + step * 0.999; value += step) found.push(value);
    return found;
  };

  // Powers of ten around what lies between two values above 0; between them 2 and 5 times these
  // where there are few.
  const decades = (low, high) => {
    const [from, to] = [Math.floor(Math.log10(low) + 1e-9), Math.ceil(Math.log10(high) - 1e-9)];
    const last = Math.max(to, from + 1);
    const factors = last - from <= 2 ? [1, 2, 5] : [1];
    const found = [];
    for (let power = from; power <= last; power += 1) {
      for (const factor of power < last ? factors : [1]) found.push(factor * 10 ** power);
    }
    const [least, most] = [low * (1 + 1e-9), high * (1 - 1e-9)];
    const first = Math.max(0, found.findIndex((value) => value > least) - 1);
    const end = found.findIndex((value) => value >= most);
    return found.slice(first, Math.max(end, first + 1) + 1);
  };

  // Where round values lie on an axis from 0 to `end`, in units of which there are two at least,
  // and their texts.
  const unitTicks = (end, units, text) => {
    const unit = units.filter((unit) => end / unit >= 2).pop() || units[0];
    return ticks(end / unit, 10).filter((value) => value * unit <= end * 1.0001)
      .map((value) => [value * unit / end, text(value, unit)]);
  };
  const SPANS = { 1: "s", 60: "min", 3600: "h", 86400: "days" };
  const timeTicks = (end) => unitTicks(end, Object.keys(SPANS).map(Number), (value, unit) =>
    value === 0 ? "0" : `${+value.toFixed(1)} ${SPANS[unit]}`);
  const countTicks = (end) => unitTicks(end, [1], thousands);

  // Shapes around 0,0 that are told apart without colour.
  const MARKERS = [
    "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0Z", "M-3,-3H3V3H-3Z", "M0,-4L4,3.2H-4Z",
    "M0,-4.4L4.4,0L0,4.4L-4.4,0Z", "M0,4L4,-3.2H-4Z", "M-3.4,-3.4L3.4,3.4M-3.4,3.4L3.4,-3.4",
    "M-4.4,0H4.4M0,-4.4V4.4", "M-4.4,-2H4.4V2H-4.4Z",
  ];
  const marker = (series, x, y, parent) => {
    const shape = (series.marker || 0) % MARKERS.length;
    element("path", { d: MARKERS[shape], class: "marker", fill: series.color,
      stroke: series.color, transform: `translate(${x.toFixed(1)},${y.toFixed(1)})` }, parent);
  };
  const legend = (holder, shown) => {
    const list = html("div", holder, undefined, "legend");
    for (const series of shown) {
      const entry = html("span", list);
      const swatch = element("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, entry);
      const line = { x1: 0, x2: 26, y1: 6, y2: 6, stroke: series.color, "stroke-width": 2 };
      if (series.dashed) line["stroke-dasharray"] = "5 4";
      element("line", line, swatch);
      if (series.marker !== undefined) marker(series, 13, 6, swatch);
      entry.append(series.note ? `${series.name} (${series.note})` : series.name);
    }
  };

  // Indices in groups, no more than `most`: one group for each pixel of a long series.
  const grouped = (count, most) => {
    const groups = Math.min(count, Math.max(1, most));
    return Array.from({ length: groups }, (_, group) => [
      Math.floor(group * count / groups), Math.floor((group + 1) * count / groups)]);
  };
  // Of a group: where its smallest and its largest value are, in their order, these, and the mean;
  // null if there is no value.
  const digest = (values, [from, to]) => {
    let [low, high, sum, count] = [-1, -1, 0, 0];
    for (let index = from; index < to; index += 1) {
      const value = values[index];
      if (value === null || value === undefined) continue;
      sum += value;
      count += 1;
      if (low < 0 || value < values[low]) low = index;
      if (high < 0 || value > values[high]) high = index;
    }
    if (low < 0) return null;
    const places = low === high ? [low] : [Math.min(low, high), Math.max(low, high)];
    return { places, low: values[low], high: values[high], mean: sum / count };
  };

  const middle = ([from, to]) => Math.floor((from + to - 1) / 2);

  // Width of charts while the page is printed: that of the paper, whatever the window's is.
  const PRINT_WIDTH = { wide: 680, half: 330 };
  let isPrinting = false;
  // Draws now, when the width changes, and for the printer.
  const keepDrawn = (draw) => {
    draw();
    let drawnWidth = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === drawnWidth) return;
      drawnWidth = window.innerWidth;
      draw();
    });
    const print = (begins) => () => {
      isPrinting = begins;
      draw();
    };
    window.addEventListener("beforeprint", print(true));
    window.addEventListener("afterprint", print(false));
  };
  const sizeOf = (holder) => {
    const isWide = holder.closest("figure.wide") !== null;
    const printed = isWide ? PRINT_WIDTH.wide : PRINT_WIDTH.half;
    const width = isPrinting ? printed : Math.max(240, Math.round(holder.clientWidth || 480));
    return [width, Math.round(Math.min(280, Math.max(190, width * 0.42)))];
  };

  // The axis of values: its marks, and how far up a value is, from 0 to 1.
  const axis = (all, options) => {
    const above = all.filter((value) => value > 0);
    const top = options.top || Math.max(...ends(all));
    if (options.isLog && above.length > 0) {
      const low = Math.min(ends(above)[0], top);
      const marks = decades(low, top);
      const [lowest, highest] = [marks[0], marks[marks.length - 1]];
      // What is 0 has no place on such an axis: it is drawn at its lower end.
      const share = (value) =>
        Math.log(Math.max(value, lowest) / lowest) / Math.log(highest / lowest);
      return { marks, share };
    }
    const marks = ticks(top, options.base || 10);
    return { marks, share: (value) => value / marks[marks.length - 1] };
  };
  // The smallest and the largest; there may be more of them than a call takes arguments.
  const ends = (all) => all.reduce(([low, high], value) =>
    [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

  const axes = (svg, options, layout, marks, tickText) => {
    const { width, height, left, right, top, inner, where, y } = layout;
    for (const value of marks) {
      const line = { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" };
      element("line", line, svg);
      const place = { x: left - 6, y: y(value) + 4, "text-anchor": "end" };
      element("text", place, svg, tickText(value));
    }
    // As many labels as there is room for.
    const xTicks = options.xTicks || options.labels.map((text, index) => [where[index], text]);
    let free = -Infinity;
    for (const [at, text] of xTicks) {
      const half = text.length * 3.4;
      const center = left + at * inner.width;
      const middle = Math.min(Math.max(center, left - 6 + half), width - half);
      if (middle - half < free) continue;
      free = middle + half + 12;
      element("text", { x: middle, y: height - 6, "text-anchor": "middle" }, svg, text);
      element("line", { x1: center, x2: center, y1: top + inner.height, y2: top + inner.height + 4,
        class: "grid" }, svg);
    }
  };

  const bars = (plot, shown, layout) => {
    const { top, inner, x, y, count } = layout;
    const barWidth = Math.max(1, Math.min(36, inner.width / count * 0.76) / shown.length);
    shown.forEach((series, place) => series.values.forEach((value, index) => {
      if (!value) return;
      const start = x(index) + (place - shown.length / 2) * barWidth;
      element("rect", { x: start, y: y(value), width: Math.max(1, barWidth - 1),
        height: top + inner.height - y(value), fill: series.color }, plot);
    }));
  };

  // Points of a line have markers if they are few; in a long one, a few have.
  const POINTS_MARKED = 24;
  const MARKERS_OF_A_LINE = 6;
  const lines = (plot, shown, layout, groups) => {
    const { x, y } = layout;
    const few = groups.length <= POINTS_MARKED;
    const middles = groups.map((group) => x(middle(group)));
    const path = (points) => points.map(([at, value], index) =>
      `${index > 0 ? "L" : "M"}${at.toFixed(1)},${y(value).toFixed(1)}`).join("");
    shown.forEach((series, place) => {
      const found = groups.map((group) => digest(series.values, group));
      // Where a group has several values, all between the smallest and the largest is there in
      // pale, so that no dip and no peak is lost, and the line is the mean.
      if (found.some((group) => group && group.places.length > 1)) {
        const points = found.flatMap((group) => (group ? group.places : [])
          .map((index) => [x(index), series.values[index]]));
        element("path", { d: path(points), class: "range", stroke: series.color }, plot);
      }
      const means = found.flatMap((group, number) =>
        group ? [[middles[number], group.mean]] : []);
      const line = { d: path(means), class: "line", stroke: series.color };
      if (series.dashed) line["stroke-dasharray"] = "5 4";
      element("path", line, plot);
      if (!few && series.marker === undefined) return;
      const step = few ? 1 : groups.length / MARKERS_OF_A_LINE;
      // Those of several lines do not lie one upon the other.
      const first = few ? 0 : step * (place + 0.5) / shown.length;
      for (let at = first; at < groups.length; at += step) {
        const group = found[Math.floor(at)];
        if (group) marker(series, middles[Math.floor(at)], y(group.mean), plot);
      }
    });
  };

  // Values at the pointer, at the place that was tapped, or where the arrow keys have gone.
  const pointing = (holder, svg, shown, layout, groups, options) => {
    const { width, height, left, top, inner, where, x } = layout;
    const cursor = element("line", { y1: top, y2: top + inner.height, class: "cursor" }, svg);
    const place = (index) => {
      cursor.setAttribute("x1", x(index));
      cursor.setAttribute("x2", x(index));
      cursor.style.display = "";
    };
    const tip = html("div", holder, undefined, "tip");
    const hide = () => {
      tip.hidden = true;
      if (options.cursor === undefined) cursor.style.display = "none";
      else place(options.cursor);
    };
    hide();
    let current = -1;
    const show = (number) => {
      current = Math.max(0, Math.min(groups.length - 1, number));
      const group = groups[current];
      place(middle(group));
      tip.replaceChildren();
      const labels = options.tipLabels || options.labels;
      const [first, last] = [labels[group[0]], labels[group[1] - 1]];
      html("strong", tip, first === last ? first : `${first} to ${last}`);
      for (const series of shown) {
        const found = digest(series.values, group);
        const [mean, low, high] = found
          ? [found.mean, found.low, found.high].map(options.format) : ["–", "–", "–"];
        const text = low === high ? mean : `${mean} (${low} to ${high})`;
        html("div", tip, `${series.name}: ${text}`);
      }
      tip.hidden = false;
      const scale = svg.getBoundingClientRect().width / width;
      const room = holder.clientWidth - tip.offsetWidth;
      const wanted = x(middle(group)) * scale + 12;
      const start = wanted > room ? x(middle(group)) * scale - tip.offsetWidth - 12 : wanted;
      tip.style.left = `${Math.max(0, Math.min(room, start))}px`;
      tip.style.top = `${top}px`;
    };
    const groupAt = (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) * width / box.width - left) / inner.width;
      let best = 0;
      groups.forEach((group, number) => {
        const distance = (number) => Math.abs(where[middle(groups[number])] - at);
        if (distance(number) < distance(best)) best = number;
      });
      return best;
    };
    const zone = element("rect", { x: left, y: 0, width: inner.width, height, class: "zone" }, svg);
    const point = (event) => {
      tip.removeAttribute("aria-live");
      show(groupAt(event));
    };
    zone.addEventListener("pointermove", point);
    zone.addEventListener("pointerdown", point);
    // A finger that is lifted leaves, too; what it tapped stays until something else is tapped.
    zone.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") hide();
    });
    svg.addEventListener("blur", hide);
    if (options.pick) {
      zone.addEventListener("click", (event) => options.pick(middle(groups[groupAt(event)])));
    }
    svg.addEventListener("keydown", (event) => {
      const leap = Math.max(1, Math.round(groups.length / 10));
      const begin = current < 0 ? groups.length - 1 : current;
      const to = { ArrowLeft: begin - 1, ArrowRight: current + 1, PageUp: begin - leap,
        PageDown: current + leap, Home: 0, End: groups.length - 1 }[event.key];
      // Said aloud only here: a pointer passes many values by.
      tip.setAttribute("aria-live", "polite");
      if (to !== undefined) show(to);
      else if (event.key === "Escape") hide();
      else if (event.key === "Enter" && options.pick && current >= 0) {
        options.pick(middle(groups[current]));
      } else return;
      event.preventDefault();
    });
  };

  // A chart: x positions by index, lines or bars, values at the pointer.
  //   labels: text of each x; series: {name, color, values, dashed, marker, note}, where null is
  //   no value, marker a number, and note stands behind the name in the legend.
  //   format: of a value; tick: of a value at the axis; top, base: of the axis; values beyond top
  //   are cut off; bars: bars instead of lines; isLog: an axis in powers of ten.
  //   pick: called with the index that was pointed at; cursor: index to mark;
  //   at: where each x lies from 0 to 1; xTicks: [[where, text]] instead of labels.
  let chartCount = 0;
  const chart = (holder, options) => {
    // What had the keyboard is drawn anew, and has it again.
    const hadFocus = holder.contains(document.activeElement);
    holder.replaceChildren();
    const has = (series) => series.values.some((value) => value !== null && value !== undefined);
    const shown = options.series.filter(has);
    if (shown.length === 0 || options.labels.length === 0) {
      html("p", holder, options.empty || "Nothing to show.", "empty");
      return;
    }
    const [width, height] = sizeOf(holder);
    const all = shown.flatMap((series) => series.values)
      .filter((value) => value !== null && value !== undefined);
    const { marks, share } = axis(all, options);
    const tickText = options.tick || options.format;
    const left = 10 + 7 * Math.max(...marks.map((value) => tickText(value).length));
    const [top, right, bottom] = [10, 14, 26];
    const count = options.labels.length;
    const inner = { width: width - left - right, height: height - top - bottom };
    const where = options.at || options.labels.map((_, index) =>
      options.bars || count === 1 ? (index + 0.5) / count : index / (count - 1));
    const x = (index) => left + where[index] * inner.width;
    const y = (value) => top + inner.height * (1 - share(value));
    const layout = { width, height, left, right, top, inner, where, count, x, y };
    const groups = grouped(count, options.bars ? count : Math.floor(inner.width));
    const caption = holder.parentElement.querySelector("figcaption");
    const names = shown.map((series) => series.name).join(", ");
    const label = `${caption ? `${caption.textContent}: ` : ""}${names}; arrow keys show values`;
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", tabindex: 0,
      "aria-label": label }, holder);
    axes(svg, options, layout, marks, tickText);
    chartCount += 1;
    const clip = element("clipPath", { id: `clip-${chartCount}` }, svg);
    // What is beyond the axis is cut off; markers on its edges are whole.
    const [, most] = ends(all);
    const above = most > marks[marks.length - 1] ? 0 : 6;
    element("rect", { x: left - 5, y: top - above, width: inner.width + 10,
      height: inner.height + above + 6 }, clip);
    const plot = element("g", { "clip-path": `url(#clip-${chartCount})` }, svg);
    if (options.bars) bars(plot, shown, layout);
    else lines(plot, shown, layout, groups);
    if (shown.length > 1 || shown[0].note) legend(holder, shown);
    pointing(holder, svg, shown, layout, groups, options);
    if (hadFocus) svg.focus({ preventScroll: true });
  };

  return { data, byId, number, percent, wholePercent, scaled, thousands, bytes, micros, times, span,
    element, html, timeTicks, countTicks, marker, chart, keepDrawn };
})();
