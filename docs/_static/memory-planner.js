/* The form of the memory planner. docs/_ext/site/memory_planner.py writes it, with the formulas of
   torchrl_doctor.planner as data; without this script its tables stay. The state is in the address. */
"use strict";

(() => {
  const form = document.querySelector("form.memory-planner");
  if (!form) return;
  const data = JSON.parse(form.nextElementSibling.textContent);
  const answer = form.querySelector(".planner-answer");
  const results = form.querySelector(".planner-results");
  const said = form.querySelector(".planner-error");
  const SAVING = ["compact", "delta", "at_sampling", "traj_ids"]; // switches to try
  const LESSONS = {
    compact: "../tutorials/memory/missing_next_observations.html",
    delta: "../tutorials/memory/saving_by_observation_size.html#memory-delta-limits",
    at_sampling: "../how-to/pixel_replay.html",
    traj_ids: "../tutorials/memory/saving_by_observation_size.html#what-else-is-in-a-frame",
  };
  let dropped = new Set();

  /* -- The plan, as torchrl_doctor.planner computes it -- */
  const compiled = {};
  const computed = (formula, names) => {
    const keys = Object.keys(names);
    const id = `${keys}|${formula}`;
    compiled[id] ??= new Function(...keys, `return ${formula}`);
    return Number(compiled[id](...keys.map((key) => names[key])));
  };
  const product = (shape) => shape.reduce((a, b) => a * b, 1);
  const entriesOf = (specs) =>
    specs.split(/[;\n]/).map((one) => one.trim()).filter(Boolean).map((text) => {
      const match = new RegExp(data.SPEC_ENTRY).exec(text);
      if (!match || !(match[2] in data.ITEMSIZES))
        throw new Error(`"${text}": write observation: float32 4, with one of ${Object.keys(data.ITEMSIZES).join(", ")}`);
      return { key: match[1], dtype: match[2], shape: (match[3].match(/\d+/g) || []).map(Number) };
    });
  const partsOfRow = (specs, policy, drop, inputs) => {
    const entry = (kind) => ({ key, dtype, shape }) =>
      [key, dtype, product(shape), shape.length, kind || data.ROLES[key] || "observation"];
    const entries = [...entriesOf(specs).map(entry()), ...entriesOf(policy).map(entry("policy"))];
    for (const [key, dtype, elements, kind, condition] of data.FIXED)
      if (computed(condition, inputs)) entries.push([key, dtype, computed(elements, inputs), 1, kind]);
    const parts = [];
    for (const [key, dtype, elements, dims, kind] of entries) {
      const floating = Number(dtype.includes("float"));
      const names = { ...inputs, elements, itemsize: data.ITEMSIZES[dtype], dims, floating };
      for (const [name, formula] of data.OF_ENTRY) names[name] = computed(formula, names);
      for (const [template, bytes, stored] of data.PARTS[kind]) {
        const part = { key: template.replace("{}", key), inBatch: computed(bytes, names) };
        part.stored = computed(stored, names);
        part.inBuffer = part.inBatch * part.stored * !drop.has(part.key);
        if (part.inBatch) parts.push(part);
      }
    }
    return parts;
  };
  const planned = (specs, policy = "", drop = new Set(), given = {}) => {
    const inputs = { ...data.DEFAULTS, ...given };
    const parts = partsOfRow(specs, policy, drop, inputs);
    const sum = (name) => parts.reduce((total, part) => total + part[name], 0);
    const names = { ...inputs, row: sum("inBatch"), kept: sum("inBuffer") };
    const totals = { row: names.row, kept: names.kept };
    for (const [name, formula] of data.TOTALS) totals[name] = names[name] = computed(formula, names);
    return { parts, totals };
  };
  form.planned = (specs, given) => planned(specs, "", new Set(), given).totals; // for tests

  /* -- The form -- */
  const fields = [...form.elements].filter(({ name }) => name && name !== "keep");
  const valueOf = (field) => (field.type === "checkbox" ? String(Number(field.checked)) : field.value);
  const put = (field, value) => {
    if (field.type === "checkbox") field.checked = value === "1";
    else field.value = value;
  };
  const first = Object.fromEntries(fields.map((field) => [field.name, valueOf(field)]));
  const inputsOf = () => {
    const { env, specs, policy, storage, cell, ...rest } =
      Object.fromEntries(fields.map((field) => [field.name, valueOf(field)]));
    const inputs = Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, Number(value)]));
    const share = { share: inputs.share / 100, share_most: inputs.share_most / 100 };
    const kinds = { tensor: 0, memmap: 0, list: 0, compressed: 0, [storage === "scratch" ? "memmap" : storage]: 1 };
    const recurrent = { recurrent: Number(cell !== ""), lstm: Number(cell === "lstm") };
    return { env, specs, policy, storage, cell, inputs: { ...inputs, ...share, ...kinds, ...recurrent, scratch: Number(storage === "scratch") } };
  };

  const inBytes = (number) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    while (number >= 999.5 && units.length > 1) {
      number /= 1000;
      units.shift();
    }
    return `${Number(number.toPrecision(3))}\u00a0${units[0]}`;
  };
  const element = (name, text = "", attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    return made;
  };

  const shownParts = ({ parts, totals }) => {
    const largest = Math.max(...parts.map((part) => part.inBatch), 1);
    const table = element("table", "", { class: "table planner-parts" });
    const head = table.createTHead().insertRow();
    ["Key", "Bytes of a row", "", "In the buffer"].forEach((text) => head.append(element(text ? "th" : "td", text)));
    head.cells[1].className = "is-number";
    const body = table.createTBody();
    for (const part of parts) {
      const row = body.insertRow();
      row.append(element("th", part.key, { scope: "row" }), element("td", inBytes(part.inBatch), { class: "is-number" }));
      const bar = row.insertCell();
      bar.append(element("span", "", { class: "planner-bar", style: `inline-size: ${(100 * part.inBatch) / largest}%` }));
      const kept = element("input", "", { type: "checkbox", name: "keep", value: part.key, "aria-label": `Store ${part.key}` });
      kept.checked = Boolean(part.stored) && !dropped.has(part.key);
      kept.disabled = !part.stored;
      row.insertCell().append(kept);
    }
    const row = body.insertRow();
    row.append(element("th", "together", { scope: "row" }), element("td", inBytes(totals.row), { class: "is-number" }));
    row.insertCell();
    row.insertCell().textContent = inBytes(totals.stored_row);
    return table;
  };

  const shownTotals = ({ totals }, storage) => {
    const table = element("table", "", { class: "table planner-totals" });
    const body = table.createTBody();
    for (const [name, title] of Object.entries(data.titles)) {
      if (!totals[name] || (name === "buffer_process_most" && storage !== "compressed")) continue;
      const row = body.insertRow();
      row.append(element("th", title, { scope: "row" }), element("td", inBytes(totals[name]), { class: "is-number", "data-bytes": name }));
    }
    return table;
  };

  const shownSavings = ({ specs, policy, inputs }, now) => {
    const list = element("ul", "", { class: "planner-savings" });
    for (const name of SAVING) {
      const other = planned(specs, policy, dropped, { ...inputs, [name]: 1 - inputs[name] });
      const difference = now.totals.stored - other.totals.stored;
      const needed = name === "traj_ids" && (inputs.compact || inputs.at_sampling);
      if (!difference || needed) continue;
      const label = form.elements[name].parentNode.textContent.trim();
      const text = `${inputs[name] ? "Without" : "With"} ${label} the buffer would be ${inBytes(Math.abs(difference))} `;
      const item = element("li", `${text}${difference > 0 ? "smaller" : "larger"}. `);
      item.append(element("a", "What it costs", { href: LESSONS[name] }));
      list.append(item);
    }
    return list;
  };

  const code = ({ inputs, storage, policy, specs }, { parts }) => {
    const several = inputs.workers > 1;
    const options = [`frames_per_batch=${inputs.frames_per_batch}`];
    if (several) options.push('cat_results="stack"');
    if (inputs.compact) options.push("compact_obs=True");
    if (!inputs.traj_ids) options.push("track_traj_ids=False");
    const call = several ? `MultiSyncCollector([make_env] * ${inputs.workers}` : "Collector(env";
    const transforms = [inputs.step_count && "StepCounter()", inputs.is_init && "InitTracker()"];
    const images = entriesOf(specs).filter(({ key, shape }) => !(key in data.ROLES) && shape.length > 2);
    if (inputs.at_sampling && inputs.frames > 1)
      images.forEach(({ key }) => transforms.push(`CatFrames(N=${inputs.frames}, dim=-3, in_keys=["${key}"], out_keys=["${key}_stack"])`));
    if (inputs.delta) transforms.push("NextObservationDelta()");
    const seen = entriesOf(specs).filter(({ key }) => !(key in data.ROLES));
    const names = (entries) => entries.map(({ key }) => `"${key}"`).join(", ");
    const restored = [];
    const given = [];
    const before = [];
    const kind = { tensor: "LazyTensorStorage", memmap: "LazyMemmapStorage", scratch: "LazyMemmapStorage", list: "ListStorage", compressed: "CompressedListStorage" }[storage];
    let made = `${kind}(${inputs.rows}${storage === "scratch" ? ', scratch_dir="replay"' : ""})`;
    const stacks = inputs.at_sampling && images.length;
    const oneFrame = stacks && (inputs.compact || images.some(({ key }) => dropped.has(`next.${key}`)));
    const twoFrames = stacks && !oneFrame; // the library's sampler needs the next frame in the row
    if (inputs.delta) restored.push(`NextObservationDelta(in_keys=[${names(seen.filter(({ dtype }) => dtype.includes("float")))}])`);
    if (inputs.compact && !oneFrame) {
      restored.push(`NextStateReconstructor([${names(seen)}], step_count_key="step_count")`);
      given.push('sampler=SliceSampler(slice_len=8, traj_key=("collector", "traj_ids"))');
    }
    if (oneFrame) {
      before.push(`storage = ${made}`);
      made = "storage";
      restored.push("StackFrames(storage)");
    }
    if (twoFrames) {
      const { key } = images[0];
      before.push(`stack = CatFrames(N=${inputs.frames}, dim=-3, in_keys=["${key}"], out_keys=["${key}_stack"], reset_key="_reset")`);
      before.push("transform, sampler = stack.make_rb_transform_and_sampler(batch_size=256)");
      given.push("sampler=sampler");
      restored.push("transform");
    }
    if (restored.length) given.push(`transform=${restored.length > 1 ? `Compose(${restored.join(", ")})` : restored[0]}`);
    const warnings = [];
    if ((inputs.compact || oneFrame) && !(inputs.step_count && inputs.traj_ids))
      warnings.push("# Switch on StepCounter and trajectory ids: the next observations are rebuilt by them.");
    if (oneFrame) warnings.push('# StackFrames is in the guide "Store pixels at one frame per step"; give it your keys.');
    if (restored.length > 1) warnings.push("# Compare a rebuilt sample with a full one before you train: these transforms depend on each other.");
    const left = parts.filter((part) => !part.inBuffer).map(({ key }) => {
      const keys = key.split(".").map((one) => `"${one}"`).join(", ");
      return key.includes(".") ? `(${keys})` : keys;
    });
    const rows = `batch.reshape(-1)${left.length ? `.exclude(${left.join(", ")})` : ""}`;
    return [
      ...warnings,
      ...transforms.filter(Boolean).map((one) => `env.append_transform(${one})`),
      `collector = ${call}, policy, total_frames=-1, ${options.join(", ")})`,
      ...before,
      `buffer = ${inputs.index && !twoFrames ? "TensorDictReplayBuffer" : "ReplayBuffer"}(`,
      ...[`storage=${made}`, ...given, "batch_size=256"].map((one) => `    ${one},`),
      ")",
      "for batch in collector:",
      `    buffer.extend(${rows}${storage === "compressed" ? '.flatten_keys(".")' : ""})`,
    ].join("\n");
  };

  const show = () => {
    const asked = inputsOf();
    said.textContent = "";
    try {
      if (!form.checkValidity()) throw new Error("Each number has to be there, and not below zero.");
      const plan = planned(asked.specs, asked.policy, dropped, asked.inputs);
      const pre = element("pre", code(asked, plan), { tabindex: "0", "aria-label": "Code of this plan" });
      answer.replaceChildren(shownTotals(plan, asked.storage));
      results.replaceChildren(pre, shownParts(plan), shownSavings(asked, plan));
    } catch (error) {
      said.textContent = error.message;
    }
  };

  const write = () => {
    const changed = fields.filter((field) => valueOf(field) !== first[field.name]);
    const state = new URLSearchParams(changed.map((field) => [field.name, valueOf(field)]));
    if (dropped.size) state.set("drop", [...dropped].join(","));
    history.replaceState(null, "", `${location.pathname}${location.search}#${state}`);
  };
  const read = () => {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) return; // a section
    const state = new URLSearchParams(hash);
    fields.forEach((field) => put(field, state.get(field.name) ?? first[field.name]));
    dropped = new Set((state.get("drop") || "").split(",").filter(Boolean));
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (target.name === "keep") {
      dropped[target.checked ? "delete" : "add"](target.value);
    } else if (target.name === "env" && data.PRESETS[target.value]) {
      const { title, ...preset } = data.PRESETS[target.value];
      const values = { frames: 1, inputs: data.DEFAULTS.inputs, ...preset };
      Object.entries(values).forEach(([name, value]) => put(form.elements[name], String(value)));
      dropped = new Set();
    } else if (target.name === "specs") {
      form.elements.env.value = "own";
    }
    const { name, value } = document.activeElement;
    show();
    write();
    if (name === "keep") form.querySelector(`input[name="keep"][value="${CSS.escape(value)}"]`)?.focus();
  });
  window.addEventListener("hashchange", () => {
    read();
    show();
  });
  read();
  form.querySelector("details").open = form.elements.cell.value !== "";
  show();
})();
