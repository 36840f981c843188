"use strict";
(() => {
  // Charts that answer a pointer, in place of the drawn SVG of a figure: values at the pointer, zoom by dragging
  // (a double click resets it), and series that are switched off and on in the legend.
  const css = (name) => (name.startsWith("--") ? getComputedStyle(document.documentElement).getPropertyValue(name).trim() : name);
  const format = (value, decimals) => {
    if (value === null || value === undefined) return "–";
    if (decimals) return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
    const size = Math.abs(value);
    if (size > 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(2);
    return size > 0 && size < 0.01 ? value.toPrecision(3) : value.toLocaleString("en", { maximumFractionDigits: size < 1 ? 4 : 2 });
  };
  const drawn = new Set();
  const kept = new Map(); // what a reader zoomed into and switched off, while a live page replaces its parts

  // The point of a series that the pointer means: the nearest, where only others may have one, and of steps the last.
  const nearest = (looks) => (chart, at, index) => {
    if (at === 0) return index;
    const [xs, values] = [chart.data[0], chart.data[at]];
    const place = chart.posToVal(chart.cursor.left, "x");
    const steps = looks[at - 1] === "steps";
    let [left, right] = [index, index];
    while (left >= 0 && (values[left] === undefined || (steps && xs[left] > place))) left -= 1;
    while (right < values.length && values[right] === undefined) right += 1;
    if (left < 0) return right < values.length ? right : null;
    return steps || right >= values.length || place - xs[left] <= xs[right] - place ? left : right;
  };

  const shade = (panel) => (chart) => {
    const { ctx, bbox } = chart;
    for (const { colour, low, high } of panel.bands) {
      const [top, bottom] = [chart.valToPos(high, "y", true), chart.valToPos(low, "y", true)];
      ctx.save();
      ctx.globalAlpha = 0.16;
      ctx.fillStyle = css(colour);
      ctx.fillRect(bbox.left, Math.max(top, bbox.top), bbox.width, Math.min(bottom, bbox.top + bbox.height) - Math.max(top, bbox.top));
      ctx.restore();
    }
  };
  const whiskers = (panel) => (chart) => {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    panel.series.forEach((each, at) => {
      if (!each.low || !chart.series[at + 1].show) return;
      ctx.strokeStyle = css(each.colour);
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([]);
      ctx.beginPath();
      each.x.forEach((x, point) => {
        const place = chart.valToPos(x, "x", true);
        ctx.moveTo(place, chart.valToPos(each.low[point], "y", true));
        ctx.lineTo(place, chart.valToPos(each.high[point], "y", true));
      });
      ctx.stroke();
    });
    ctx.restore();
  };

  const paths = { steps: uPlot.paths.stepped({ align: 1 }), points: () => null };
  const options = (panel, width, state) => {
    const [left, right, low, high] = panel.range;
    const whole = (chart, from, to) => from === null || (from <= chart.data[0][0] && to >= chart.data[0][chart.data[0].length - 1]);
    const axis = { stroke: () => css("--dim"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
    const ticks = panel.ticks && { splits: () => panel.ticks.map(([place]) => place), values: () => panel.ticks.map(([, text]) => text) };
    return {
      width,
      height: 220,
      cursor: { drag: { x: true, y: true, uni: 24 }, dataIdx: nearest(panel.series.map((each) => each.look)), focus: { prox: 24 } },
      focus: { alpha: 0.35 },
      scales: {
        x: { time: false, range: (chart, from, to) => (whole(chart, from, to) ? [left, right] : [from, to]) },
        y: { range: (chart, from, to) => (whole(chart, chart.scales.x.min, chart.scales.x.max) || from === null ? [low, high] : uPlot.rangeNum(from, to, 0.1, false)) },
      },
      axes: [{ ...axis, ...ticks, label: panel.x || undefined, size: 28 }, { ...axis, label: panel.y || undefined, size: 52, values: (_, places) => places.map((place) => format(place)) }],
      series: [
        { label: panel.ticks ? "at" : panel.unit, value: (_, value) => (panel.ticks?.find(([place]) => place === value) || [0, format(value)])[1] },
        ...panel.series.map((each) => ({
          label: each.name,
          stroke: () => css(each.colour),
          width: each.width,
          dash: each.look === "dashes" ? [6, 4] : undefined,
          paths: paths[each.look],
          points: { show: each.look === "points" || (each.look === "line" && each.x.length < 40), size: 6 },
          value: (_, value) => format(value, panel.decimals),
          show: !state.off.has(each.name),
        })),
      ],
      hooks: {
        drawClear: [shade(panel)],
        draw: [whiskers(panel)],
        setSeries: [(_, at, { show }) => at && show !== undefined && state.off[show ? "delete" : "add"](panel.series[at - 1].name)],
        setScale: [(chart, key) => { state[key] = { min: chart.scales[key].min, max: chart.scales[key].max }; }],
      },
    };
  };

  const chart = (panel, box, key) => {
    const place = document.createElement("div");
    place.className = "chart";
    place.style.flexGrow = 10 * panel.share;
    if (panel.title) place.append(Object.assign(document.createElement("p"), { className: "title", textContent: panel.title }));
    box.append(place);
    const state = kept.get(key) || { off: new Set() };
    const before = { x: state.x, y: state.y };
    kept.set(key, state);
    const made = new uPlot(options(panel, place.clientWidth || 300, state), uPlot.join(panel.series.map((each) => [each.x, each.y])), place);
    if (before.x) made.batch(() => { made.setScale("x", before.x); made.setScale("y", before.y); });
    for (const name of made.root.querySelectorAll(".u-series:not(:first-child) th")) {
      name.tabIndex = 0;
      name.setAttribute("role", "button");
      name.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); name.click(); } });
    }
    new ResizeObserver(() => { if (place.clientWidth && place.clientWidth !== made.width) made.setSize({ width: place.clientWidth, height: 220 }); }).observe(place);
    drawn.add(made);
  };

  // What the charts of a figure show, as CSV. Names come from runs, and a spreadsheet must not take one for a formula.
  const csv = (panels) => {
    const text = (value) => `"${(/^[=+@\t\r-]/.test(value) ? "'" : "") + value.replaceAll('"', '""')}"`;
    const rows = panels.flatMap((panel) => panel.series.flatMap((each) => each.x.map((x, at) =>
      [text(panel.title || ""), text(each.name), x, each.y[at] ?? "", each.low?.[at] ?? "", each.high?.[at] ?? ""].join(","))));
    return ["panel,series,x,y,low,high", ...rows, ""].join("\r\n");
  };
  const download = (panels, label) => {
    const name = label.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "chart";
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Values (CSV)" });
    button.addEventListener("click", () => {
      const href = `data:text/csv;charset=utf-8,${encodeURIComponent(csv(panels))}`;
      Object.assign(document.createElement("a"), { href, download: `${name}.csv` }).click();
    });
    const line = Object.assign(document.createElement("p"), { className: "source values" });
    line.append(button);
    return line;
  };

  const draw = (figure) => {
    const label = figure.querySelector("[aria-label]")?.getAttribute("aria-label") || "";
    const box = document.createElement("div");
    box.className = "charts";
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", label);
    figure.prepend(box);
    figure.classList.add("charted");
    try {
      const panels = JSON.parse(figure.dataset.chart);
      panels.forEach((panel, at) => chart(panel, box, `${location.pathname} ${label} ${at}`));
      box.append(download(panels, label));
    } catch (error) { // the drawn figure is there
      figure.classList.remove("charted");
      box.remove();
      console.error(error);
    }
  };

  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) { watcher.unobserve(target); draw(target); }
  }, { rootMargin: "400px" });
  const find = () => { for (const figure of document.querySelectorAll("figure[data-chart]:not([data-found])")) { figure.dataset.found = ""; watcher.observe(figure); } };
  const start = () => {
    find();
    new MutationObserver(() => {
      for (const each of drawn) if (!each.root.isConnected) { each.destroy(); drawn.delete(each); }
      find();
    }).observe(document.body, { childList: true, subtree: true });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const each of drawn) each.redraw(false); });
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start); else start();
})();
