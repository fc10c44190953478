"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  document.body.classList.add("scripted");

  // Numbers for people.
  const digits = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : 2);
  const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });
  const percent = (ratio) => `${(100 * ratio).toFixed(1)} %`;
  const scaled = (value, units, step) => {
    let unit = 0;
    while (value >= step && unit + 1 < units.length) {
      value /= step;
      unit += 1;
    }
    const text = Number.isInteger(value) ? String(value) : value.toFixed(digits(value));
    return `${text.includes(".") ? text.replace(/\.?0+$/, "") : text} ${units[unit]}`;
  };
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
  const figures = (list, pairs) => {
    list.replaceChildren();
    for (const [name, value] of pairs) {
      const pair = html("div", list);
      html("dt", pair, name);
      html("dd", pair, value);
    }
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

  // Powers of ten around what lies between two values above 0.
  const decades = (low, high) => {
    const [from, to] = [Math.floor(Math.log10(low) + 1e-9), Math.ceil(Math.log10(high) - 1e-9)];
    const found = [];
    for (let power = from; power <= Math.max(to, from + 1); power += 1) found.push(10 ** power);
    return found;
  };

  // A chart: x positions by index, lines or bars, a tip at the pointer.
  //   labels: text of each x; series: {name, color, values, dashed}; format: of a value.
  //   tick: of a value at the axis; top, base: of the axis; bars: bars instead of lines;
  //   pick: called with the index that was pointed at; cursor: index to mark;
  //   isLog: an axis in powers of ten; values must be above 0.
  //   at: where each x lies from 0 to 1; xTicks: [[where, text]] instead of labels.
  const chart = (holder, options) => {
    holder.replaceChildren();
    const shown = options.series.filter((series) => series.values.some((value) => value !== null));
    if (shown.length === 0 || options.labels.length === 0) {
      html("p", holder, options.empty || "Nothing to show.", "empty");
      return;
    }
    const width = Math.max(240, Math.round(holder.clientWidth || 480));
    const height = Math.round(Math.min(280, Math.max(190, width * 0.42)));
    const all = shown.flatMap((series) => series.values).filter((value) => value !== null);
    const marks = options.isLog ? decades(Math.min(...all), Math.max(...all))
      : ticks(options.top || Math.max(...all), options.base || 10);
    const [lowest, highest] = [marks[0], marks[marks.length - 1]];
    const tickText = options.tick || options.format;
    const widest = Math.max(...marks.map((value) => tickText(value).length));
    const left = 10 + 7 * widest;
    const [top, right, bottom] = [10, 14, 26];
    const count = options.labels.length;
    const inner = { width: width - left - right, height: height - top - bottom };
    const where = options.at || options.labels.map((_, index) =>
      options.bars || count === 1 ? (index + 0.5) / count : index / (count - 1));
    const x = (index) => left + where[index] * inner.width;
    const share = options.isLog
      ? (value) => Math.log(value / lowest) / Math.log(highest / lowest)
      : (value) => value / highest;
    const y = (value) => top + inner.height * (1 - share(value));
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }, holder);
    element("title", {}, svg, shown.map((series) => series.name).join(", "));
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
    const cursor = element("line", { y1: top, y2: top + inner.height, class: "cursor" }, svg);
    const barWidth = Math.max(1, Math.min(36, inner.width / count * 0.76) / shown.length);
    shown.forEach((series, number) => {
      if (options.bars) {
        series.values.forEach((value, index) => {
          if (!value) return;
          const start = x(index) + (number - shown.length / 2) * barWidth;
          element("rect", { x: start, y: y(value), width: Math.max(1, barWidth - 1),
            height: top + inner.height - y(value), fill: series.color }, svg);
        });
        return;
      }
      let path = "";
      series.values.forEach((value, index) => {
        if (value === null) return;
        path += `${path ? "L" : "M"}${x(index).toFixed(1)},${y(value).toFixed(1)}`;
      });
      const line = { d: path, class: "line", stroke: series.color };
      if (series.dashed) line["stroke-dasharray"] = "5 4";
      element("path", line, svg);
      if (count <= 24) {
        series.values.forEach((value, index) => {
          if (value === null) return;
          element("circle", { cx: x(index), cy: y(value), r: 2.5, fill: series.color }, svg);
        });
      }
    });
    const place = (index) => {
      cursor.setAttribute("x1", x(index));
      cursor.setAttribute("x2", x(index));
      cursor.style.display = "";
    };
    cursor.style.display = "none";
    if (options.cursor !== undefined) place(options.cursor);

    if (shown.length > 1) {
      const legend = html("div", holder, undefined, "legend");
      for (const series of shown) {
        const entry = html("span", legend);
        html("i", entry).style.background = series.color;
        entry.append(series.name);
      }
    }
    const tip = html("div", holder, undefined, "tip");
    tip.hidden = true;
    const zone = element("rect", { x: left, y: 0, width: inner.width, height, class: "zone" }, svg);
    const indexAt = (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) * width / box.width - left) / inner.width;
      let best = 0;
      where.forEach((place, index) => {
        if (Math.abs(place - at) < Math.abs(where[best] - at)) best = index;
      });
      return best;
    };
    zone.addEventListener("pointermove", (event) => {
      const index = indexAt(event);
      place(index);
      tip.replaceChildren();
      html("strong", tip, (options.tipLabels || options.labels)[index]);
      for (const series of shown) {
        const value = series.values[index];
        html("div", tip, `${series.name}: ${value === null ? "–" : options.format(value)}`);
      }
      tip.hidden = false;
      const scale = svg.getBoundingClientRect().width / width;
      const room = holder.clientWidth - tip.offsetWidth;
      const wanted = x(index) * scale + 12;
      const start = wanted > room ? x(index) * scale - tip.offsetWidth - 12 : wanted;
      tip.style.left = `${Math.max(0, Math.min(room, start))}px`;
      tip.style.top = `${top}px`;
    });
    zone.addEventListener("pointerleave", () => {
      tip.hidden = true;
      if (options.cursor === undefined) cursor.style.display = "none";
      else place(options.cursor);
    });
    if (options.pick) zone.addEventListener("click", (event) => options.pick(indexAt(event)));
  };

  const color = { a: "var(--a)", b: "var(--b)", c: "var(--c)" };

  // Sizes.
  const sizes = data.sizes;
  const choice = data.recommendation.choice;
  let shownIndex = choice.size_index;
  let shownMode = choice.mode;
  const slider = byId("size");
  const select = byId("mode");
  slider.max = sizes.length - 1;
  const sizeLabels = sizes.map((size) => bytes(size.cache_bytes));
  const first = Math.log(sizes[0].cache_bytes);
  const last = Math.log(sizes[sizes.length - 1].cache_bytes);
  const sizePlaces = sizes.map((size) =>
    last > first ? (Math.log(size.cache_bytes) - first) / (last - first) : 0.5);

  const drawSizes = () => {
    const size = sizes[shownIndex];
    const mode = size[shownMode];
    const pick = (index) => show(index, shownMode);
    const common = { labels: sizeLabels, at: sizePlaces, cursor: shownIndex, pick };
    slider.value = shownIndex;
    slider.setAttribute("aria-valuetext", sizeLabels[shownIndex]);
    select.value = shownMode;
    for (const row of byId("table").rows) {
      row.classList.toggle("shown", Number(row.dataset.index) === shownIndex);
    }
    const pairs = [
      ["Cache", sizeLabels[shownIndex]],
      // Where reads are not promoted, the curve says nothing.
      ["Blocks found", shownMode === "writeonly" ? "–" : percent(size.hit_ratio)],
      ["Mean read", micros(mode.read_us)],
      ["without a cache", micros(data.uncached.read_us)],
    ];
    if (data.profile.writes.request_count > 0) {
      pairs.push(["Mean write", micros(mode.write_us)]);
      pairs.push(["without a cache", micros(data.uncached.write_us)]);
    }
    pairs.push(["Speed-up", times(mode.speedup)]);
    pairs.push(["Written to the cache", bytes(mode.cache_written_bytes)]);
    if (mode.drive_writes_per_day !== null) {
      pairs.push(["Drive writes a day", String(+mode.drive_writes_per_day.toPrecision(3))]);
      pairs.push(["Origin busy, at most", percent(mode.origin_busy_ratio)]);
    }
    figures(byId("chosen"), pairs);
    const hits = [
      { name: "default policy", color: color.a, values: sizes.map((size) => size.hit_ratio) },
      { name: "LRU", color: color.c, dashed: true, values: sizes.map((s) => s.lru_hit_ratio) },
    ];
    if (data.profile.writes.request_count > 0 && data.profile.reads.request_count > 0) {
      hits.push({ name: "reads alone", color: color.b, values: sizes.map((s) => s.read_hit_ratio) });
    }
    const whole = (value) => `${Math.round(100 * value)} %`;
    chart(byId("hits"), { ...common, series: hits, format: percent, tick: whole, top: 1 });
    const others = ["writeback", "writethrough", "writeonly"].filter((name) => name !== shownMode);
    // Without writes, modes that cache reads are the same.
    const compared = data.profile.writes.request_count > 0 ? [shownMode, ...others] : [shownMode];
    const speed = compared.map((name, index) => ({
      name,
      color: [color.a, color.b, color.c][index],
      dashed: index > 0,
      values: sizes.map((size) => size[name].speedup),
    }));
    const plain = (value) => `${+value.toFixed(2)}×`;
    chart(byId("speedup"), { ...common, series: speed, format: times, tick: plain });
    const wear = sizes.map((size) => size[shownMode].drive_writes_per_day);
    if (wear[0] !== null) {
      byId("wear-caption").textContent = "Wear: drive writes a day";
      const isLog = Math.min(...wear) > 0;
      chart(byId("wear"), { ...common, isLog, format: (value) => String(+value.toPrecision(3)),
        tick: (value) => number(value) === "0" ? String(+value.toPrecision(3)) : number(value),
        series: [{ name: shownMode, color: color.b, values: wear }] });
    } else {
      byId("wear-caption").textContent = "Written to the cache device";
      chart(byId("wear"), { ...common, format: bytes, base: 2, series: [{ name: shownMode,
        color: color.b, values: sizes.map((size) => size[shownMode].cache_written_bytes) }] });
    }
  };
  const show = (index, mode) => {
    shownIndex = index;
    shownMode = mode;
    drawSizes();
  };
  slider.addEventListener("input", () => show(Number(slider.value), shownMode));
  select.addEventListener("change", () => show(shownIndex, select.value));
  byId("table").addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) show(Number(row.dataset.index), shownMode);
  });

  // The workload.
  const profile = data.profile;
  const drawWorkload = () => {
    const { reads, writes, discards, windows } = profile;
    const part = (count, all) => (all > 0 ? percent(count / all) : "–");
    const requests = reads.request_count + writes.request_count;
    const pairs = [["Reads", number(reads.request_count)], ["Read", bytes(reads.bytes)]];
    if (writes.request_count > 0) {
      pairs.push(["Writes", number(writes.request_count)], ["Written", bytes(writes.bytes)],
        ["Requests that write", part(writes.request_count, requests)]);
    }
    if (discards.request_count > 0) pairs.push(["Discarded", bytes(discards.bytes)]);
    if (profile.duration_s !== null) pairs.push(["Duration", span(profile.duration_s)]);
    pairs.push(["Different blocks", bytes(profile.working_set_bytes)]);
    if (writes.request_count > 0) {
      pairs.push(["Of these written", bytes(profile.written_set_bytes)]);
    }
    pairs.push(["First use of a block", percent(profile.first_touch_ratio)]);
    if (reads.request_count > 0) {
      pairs.push(["Reads in sequence", part(reads.continued_bytes, reads.bytes)]);
    }
    if (writes.request_count > 0) {
      pairs.push(["Writes in sequence", part(writes.continued_bytes, writes.bytes)]);
    }
    figures(byId("mix"), pairs);

    const isTime = profile.axis === "seconds";
    const width = windows.length > 1 ? windows[1].start : 1;
    const end = width * windows.length;
    const position = isTime ? span : (count) => `${number(count)} requests`;
    const labels = windows.map((window) => position(window.start));
    const tipLabels = windows.map((window) => `from ${position(window.start)}`);
    const short = isTime ? span : (count) => scaled(count, ["", "k", "M", "G"], 1000).trim();
    const units = isTime ? [1, 60, 3600, 86400] : [1];
    const unit = units.filter((unit) => end / unit >= 2).pop() || 1;
    const xTicks = ticks(end / unit, 10).map((value) => value * unit)
      .filter((value) => value <= end * 1.0001).map((value) => [value / end, short(value)]);
    const at = windows.map((_, index) => (index + 0.5) / windows.length);
    const common = { labels, tipLabels, at, xTicks };
    const set = [
      { name: "all so far", color: color.c, dashed: true,
        values: windows.map((window) => window.cumulative_bytes) },
      { name: "used in this part", color: color.a,
        values: windows.map((window) => window.working_set_bytes) },
    ];
    const rate = [{ name: "reads", color: color.a, values: windows.map((w) => w.read_count) }];
    if (writes.request_count > 0) {
      set.push({ name: "written in this part", color: color.b,
        values: windows.map((window) => window.written_set_bytes) });
      rate.push({ name: "writes", color: color.b, values: windows.map((w) => w.write_count) });
    }
    chart(byId("set"), { ...common, series: set, format: bytes, base: 2 });
    if (isTime) {
      // The last part is shorter than the others; counts are by second of what it had.
      const length = (index) => Math.max(width * 0.01,
        Math.min(width, (profile.duration_s || width) - index * width));
      for (const series of rate) series.values = series.values.map((n, i) => n / length(i));
    } else {
      const all = windows.map((window) => Math.max(1, window.read_count + window.write_count));
      for (const series of rate) series.values = series.values.map((n, i) => n / all[i]);
      if (rate.length === 1) rate.length = 0;
    }
    const format = isTime ? (value) => `${number(value)}/s` : percent;
    const tick = isTime ? (value) => `${scaled(value, ["", "k", "M"], 1000).trim()}/s`
      : (value) => `${Math.round(100 * value)} %`;
    chart(byId("rate"), { ...common, series: rate, format, tick,
      empty: "The trace has no times, and is all of one kind." });

    const kinds = [["reads", reads, color.a], ["writes", writes, color.b]]
      .filter(([, kind]) => kind.request_count > 0);
    const classes = kinds.flatMap(([, kind]) => kind.size_classes.map((n, i) => (n ? i : -1)));
    const used = classes.filter((index) => index >= 0);
    const [low, high] = used.length ? [Math.min(...used), Math.max(...used)] : [0, -1];
    const lengths = [];
    for (let index = low; index <= high; index += 1) lengths.push(index);
    chart(byId("lengths"), {
      labels: lengths.map((index) => (index === 15 ? "more" : bytes(512 * 2 ** index))),
      bars: true, format: percent, tick: (value) => `${+(100 * value).toFixed(1)} %`,
      series: kinds.map(([name, kind, color]) => ({ name, color,
        values: lengths.map((index) => kind.size_classes[index] / kind.request_count) })),
    });
    const absorbed = profile.absorption.filter((found) => found.ratio !== null);
    chart(byId("absorption"), {
      labels: absorbed.map((found) => span(found.delay_s)), bars: true, format: percent,
      tick: (value) => `${Math.round(100 * value)} %`, top: 1,
      series: [{ name: "at least", color: color.b, values: absorbed.map((found) => found.ratio) }],
      empty: writes.request_count === 0 ? "Nothing is written in this trace."
        : "The trace has no times, or is too short.",
    });
  };

  const draw = () => {
    drawSizes();
    drawWorkload();
  };
  draw();
  let drawnWidth = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === drawnWidth) return;
    drawnWidth = window.innerWidth;
    draw();
  });
})();
