(() => {
  const { data, byId, number, wholePercent, thousands, bytes, micros, span, html, element,
    timeTicks, marker, chart, keepDrawn } = page;
  const { phases, targets, published, percentiles } = data;

  // A target looks the same everywhere: colour, marker, and dashes when the colours begin again.
  const COLORS = 8;
  const look = (index) => ({ color: `var(--s${index % COLORS})`, marker: index % COLORS,
    dashed: Math.floor(index / COLORS) % 2 === 1, name: targets[index].title,
    note: targets[index].clock });
  for (const swatch of document.querySelectorAll("[data-target]")) {
    const series = look(Number(swatch.dataset.target));
    const svg = element("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, swatch);
    const line = { x1: 0, x2: 26, y1: 6, y2: 6, stroke: series.color, "stroke-width": 2 };
    if (series.dashed) line["stroke-dasharray"] = "5 4";
    element("line", line, svg);
    marker(series, 13, 6, svg);
  }

  const ratio = (value) => value.toFixed(3);
  const hitRatio = (value) => `${(100 * value).toFixed(2)} %`;
  const runTime = (value) => `${value.toFixed(value < 100 ? 2 : 1)} s`;
  const factor = (value) => `${value.toFixed(3)}×`;
  // What is drawn as bars besides IOPS: field, caption, text of a value, largest possible value.
  const FIGURES = [
    ["run_s", "Mean time of a run", runTime],
    ["first_run_s", "Time of the first run", runTime],
    ["first_iops", `IOPS in the first ${data.first_seconds} s`, number],
    ["last_iops", "IOPS in the last tenth", number],
    ["hit_ratio", "Hit ratio", hitRatio, 1],
    ["seconds", "Duration", span],
    ["fairness", "Fairness between jobs", ratio, 1],
    ["origin_bytes", "Read from and written to the origin, or the bare device", bytes],
    ["cache_written_bytes", "Written to the cache device", bytes],
    ["write_amplification", "Write amplification", factor],
    ["cpu_us", "Processor time for a request", micros],
  ];

  const PUBLISHED = ["run_s", "first_run_s", "first_iops", "last_iops", "hit_ratio", "seconds", "fairness"];

  let shownPhase = 0;
  let view = "all";
  let isLog = false;

  // The chosen phase of each target that has it.
  const measured = () => targets.flatMap((target, index) => {
    const phase = target.phases.find((phase) => phase.place === shownPhase);
    return phase ? [{ ...look(index), phase }] : [];
  });

  // Rows of bars: {name, note, color, spread} of targets, {name, note, value} of published ones.
  const bars = (holder, rows, format, most) => {
    holder.replaceChildren();
    const list = html("div", holder, undefined, "bars");
    const highest = (row) => (row.spread ? row.spread.max : row.value);
    const top = most || Math.max(...rows.map(highest)) || 1;
    for (const row of rows) {
      const bar = html("div", list, undefined, row.spread ? "bar" : "bar published");
      const name = html("span", bar, row.name, "name");
      html("small", name, ` (${row.note})`);
      const { median, min, max } = row.spread
        || { median: row.value, min: row.value, max: row.value };
      const [low, high] = [format(min), format(max)];
      const text = low === high ? format(median) : `${format(median)} (${low} to ${high})`;
      html("span", bar, text, "value");
      const track = html("div", bar, undefined, "track");
      const fill = html("div", track, undefined, "fill");
      fill.style.width = `${100 * median / top}%`;
      if (row.color) fill.style.background = row.color;
      if (low !== high) {
        const range = html("div", track, undefined, "range");
        range.style.left = `${100 * min / top}%`;
        range.style.width = `${100 * (max - min) / top}%`;
      }
    }
  };

  // What a figure of a target is drawn from: the chosen phase. A rate may be of another phase, if
  // it is the only one of its target and its jobs do the same, which is said: a bare device that is
  // measured for a minute stands beside caches that take half an hour.
  const RATES = ["iops", "first_iops", "last_iops"];
  const barRows = (field) => targets.flatMap((target, index) => {
    const only = target.phases.length === 1 && RATES.includes(field)
      ? target.phases.find((phase) => phases[phase.place].kind === phases[shownPhase].kind)
      : undefined;
    const phase = target.phases.find((phase) => phase.place === shownPhase) || only;
    if (!phase || !phase[field]) return [];
    const series = look(index);
    const note = phase.place === shownPhase ? series.note
      : `${series.note}; ${phases[phase.place].name}`;
    return [{ ...series, note, spread: phase[field] }];
  });
  const publishedNote = ({ remark }) =>
    remark ? `as published, ${remark.replace(/^\((.*)\)$/, "$1")}` : "as published";
  const isShown = ({ phase }) => phase === null || phase === phases[shownPhase].name;
  const publishedRows = (field) => published.filter((row) => row[field] !== null && isShown(row))
    .map((row) => ({ name: row.title, note: publishedNote(row), value: row[field] }));

  const drawBars = () => {
    const rates = barRows("iops");
    byId("bars-iops").parentElement.hidden = rates.length === 0;
    bars(byId("bars-iops"), [...rates, ...publishedRows("iops")], number);
    const others = byId("others");
    others.replaceChildren();
    for (const [field, caption, format, most] of FIGURES) {
      const ours = barRows(field);
      if (ours.length === 0) continue;
      // A duration that the plan sets says nothing.
      if (field === "seconds" && new Set(ours.map((row) => format(row.spread.median))).size < 2) {
        continue;
      }
      const figure = html("figure", others);
      html("figcaption", figure, caption);
      const rows = PUBLISHED.includes(field) ? [...ours, ...publishedRows(field)] : ours;
      bars(html("div", figure), rows, format, most);
    }
  };

  // Second by second. A second in which there is no sample of a target has no value.
  const overTime = (id, series, options) => {
    const last = (one) => one.phase.samples.second[one.phase.samples.second.length - 1] || 0;
    const end = Math.min(options.end || Infinity, Math.max(0, ...series.map(last)));
    const seconds = Array.from({ length: end }, (_, index) => index + 1);
    const lined = series.map((one) => {
      const { second } = one.phase.samples;
      const values = new Array(end).fill(null);
      second.forEach((at, index) => {
        if (at <= end) values[at - 1] = one.phase.samples[options.field][index];
      });
      return { ...one, values };
    });
    const all = lined.flatMap((one) => one.values).filter((value) => value !== null);
    const largest = all.reduce((most, value) => Math.max(most, value), 0);
    const top = options.isLow ? largest / 10 : options.top;
    const isAbove = options.isLow && all.every((value) => value > top);
    chart(byId(id), { empty: isAbove && all.length > 0 ? "No target is ever in the lowest tenth."
      : "The phase is too short: there is no sample.", ...options,
    labels: seconds.map(clockTime), at: seconds.map((second) => second / end),
    xTicks: timeTicks(end), series: isAbove ? [] : lined, top: top || undefined });
  };
  const clockTime = (second) => {
    const [hours, minutes] = [Math.floor(second / 3600), Math.floor(second / 60) % 60];
    const words = [[hours, "h"], [minutes, "min"], [second % 60, "s"]];
    return words.filter(([count]) => count > 0).map((word) => word.join(" ")).join(" ");
  };

  const drawIops = () => {
    const hasJobs = measured().some((one) => one.phase.iops);
    byId("iops").parentElement.hidden = !hasJobs;
    if (!hasJobs) return;
    overTime("iops", measured(), { field: "requests", format: number, tick: thousands, isLog,
      end: view === "first" ? data.first_seconds : undefined, isLow: view === "low" });
  };
  const drawLatencies = () => {
    for (const [id, field] of [["reads", "read_us"], ["writes", "write_us"]]) {
      const series = measured().map((one) => ({ ...one,
        values: one.phase[field].map((spread) => (spread ? spread.median : null)) }));
      const has = series.some((one) => one.values.some((value) => value !== null));
      byId(id).parentElement.hidden = !has;
      if (!has) continue;
      chart(byId(id), { labels: percentiles.map((percent) => `p${percent}`), series,
        format: micros, tick: micros, isLog: true });
    }
  };
  const drawCache = () => {
    const cached = measured().filter((one) => one.phase.cache_written_bytes);
    const isCounted = (ratio) => ratio !== null;
    const hits = cached.filter((one) => one.phase.samples.hit_ratio.some(isCounted));
    byId("hits").parentElement.hidden = hits.length === 0;
    if (hits.length > 0) {
      overTime("hits", hits, { field: "hit_ratio", format: hitRatio, tick: wholePercent, top: 1 });
    }
    const isDirty = cached.some((one) => one.phase.samples.dirty_bytes.some((count) => count > 0));
    byId("dirty").parentElement.hidden = !isDirty;
    if (isDirty) overTime("dirty", cached, { field: "dirty_bytes", format: bytes, base: 2 });
  };

  const chooser = byId("phase");
  phases.forEach((phase, place) => html("option", chooser, phase.name).value = place);
  byId("phase-chooser").hidden = phases.length < 2;
  const draw = () => {
    byId("charts").hidden = phases.length === 0;
    if (phases.length === 0) return;
    const phase = phases[shownPhase];
    chooser.value = shownPhase;
    byId("phase-name").textContent = phase.name;
    byId("work").replaceChildren();
    for (const line of phase.work.flat()) html("p", byId("work"), line);
    for (const row of byId("table").rows) {
      row.classList.toggle("shown", phases.length > 1 && Number(row.dataset.place) === shownPhase);
    }
    drawBars();
    drawIops();
    drawLatencies();
    drawCache();
  };

  // The phase stands in the address, so that it can be sent along.
  const MARK = "#phase-";
  const fromAddress = () => {
    const place = Number(location.hash.startsWith(MARK) ? location.hash.slice(MARK.length) : 1) - 1;
    shownPhase = Number.isInteger(place) && place >= 0 && place < phases.length ? place : 0;
  };
  const show = (place) => {
    shownPhase = place;
    history.replaceState(null, "", `${MARK}${place + 1}`);
    draw();
  };
  fromAddress();
  window.addEventListener("hashchange", () => {
    fromAddress();
    draw();
  });
  chooser.addEventListener("change", () => show(Number(chooser.value)));
  byId("table").addEventListener("click", (event) => {
    const row = event.target.closest("[data-place]");
    if (row) show(Number(row.dataset.place));
  });
  for (const choice of document.querySelectorAll("[name=view]")) {
    choice.addEventListener("change", () => {
      view = choice.value;
      drawIops();
    });
  }
  byId("log").addEventListener("change", () => {
    isLog = byId("log").checked;
    drawIops();
  });

  // Browsers that keep the clipboard from files have the older way.
  const copyOld = (text) => {
    const field = html("textarea", document.body, text);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  };
  byId("copy").addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(data.markdown);
    } catch {
      done = copyOld(data.markdown);
    }
    byId("copied").textContent = done ? "Copied."
      : "The browser does not allow it; report.md is the same.";
  });

  keepDrawn(draw);
})();
