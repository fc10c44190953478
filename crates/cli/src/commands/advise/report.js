(() => {
  const { data, byId, number, percent, thousands, bytes, micros, times, span, html, timeTicks,
    countTicks, chart, keepDrawn } = page;

  const figures = (list, pairs) => {
    list.replaceChildren();
    for (const [name, value] of pairs) {
      const pair = html("div", list);
      html("dt", pair, name);
      html("dd", pair, value);
    }
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
    const xTicks = isTime ? timeTicks(end) : countTicks(end);
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
    const tick = isTime ? (value) => `${thousands(value)}/s`
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
  keepDrawn(draw);
})();
