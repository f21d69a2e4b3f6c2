/* The form of the memory planner. docs/_ext/site/memory_planner.py writes it, with the formulas of
   torchrl_doctor.planner as data; without this script its tables stay. The state is in the address. */
"use strict";

/* What needs no page: the plan of specs, and its code. Tests run this in node. */
const memoryPlanner = (data) => {
  /* -- The plan, as torchrl_doctor.planner computes it -- */
  const compiled = {};
  const functions = Object.fromEntries(
    Object.entries(data.FUNCTIONS).map(([name, body]) => [name, new Function("x", `return ${body}`)]));
  const computed = (formula, numbers) => {
    const names = { ...functions, ...numbers };
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

  /* -- The code of a plan, or what to choose instead -- */
  const ROWS_IN_A_LIST = { list: "ListStorage", compressed: "CompressedListStorage" };
  const MODULES = {
    "torchrl.collectors": ["Collector", "MultiSyncCollector"],
    "torchrl.data": [
      "CompressedListStorage", "LazyMemmapStorage", "LazyTensorStorage", "ListStorage", "ReplayBuffer", "SliceSampler", "TensorDictReplayBuffer",
    ],
    "torchrl.envs": ["CatFrames", "Compose", "InitTracker", "NextObservationDelta", "StepCounter"],
    "torchrl.envs.transforms": ["DTypeCastTransform", "NextStateReconstructor"],
  };
  const REFUSED = "# No code for this plan.";
  const code = ({ inputs, storage, specs }, { parts }, dropped) => {
    const { frames, workers, compact, recurrent } = inputs;
    const kept = (name) => parts.some((part) => part.key === name && part.inBuffer);
    const list = (keys, ending = "") => `[${keys.map(({ key }) => `"${key}${ending}"`).join(", ")}]`;
    const isFloat = ({ dtype }) => dtype.includes("float");
    const composed = (transforms) => (transforms.length > 1 ? `Compose(${transforms.join(", ")})` : transforms[0]);

    // What a sample lacks, and who rebuilds it.
    const seen = entriesOf(specs).filter(({ key }) => !(key in data.ROLES));
    const stacked = seen.filter(({ shape }) => inputs.at_sampling && frames > 1 && shape.length > 2);
    const stored = seen.filter(({ key }) => kept(key));
    const deltas = stored.filter(({ key }) => kept(`next.delta.${key}`));
    const alone = stored.filter((entry) => !kept(`next.${entry.key}`) && !deltas.includes(entry));
    const oneFrame = stacked.some((entry) => alone.includes(entry));
    const twoFrames = stacked.length > 0 && !oneFrame;
    const shifted = alone.filter((entry) => compact && !(oneFrame && stacked.includes(entry)));
    const slices = shifted.length || recurrent;

    const refusals = [];
    const need = (name, setting, reason) => {
      if (!kept(name)) refusals.push(`${dropped.has(name) ? `Store ${name}` : `Switch on ${setting}`}: ${reason}.`);
    };
    const rebuilder = [oneFrame && "StackFrames", shifted.length && "NextStateReconstructor"].filter(Boolean).join(" and ");
    if (rebuilder) need("step_count", "StepCounter", `${rebuilder} looks for the next row by it`);
    if (rebuilder || recurrent || (twoFrames && workers > 1))
      need("collector.traj_ids", "Trajectory ids", "a sample would mix trajectories without them");
    if (shifted.length || twoFrames) need("next.done", "", "it says where an episode ends");
    if (oneFrame) need("next.terminated", "", "StackFrames reads it");
    if (recurrent) need("is_init", "InitTracker", "the policy clears its state where is_init is true");
    for (const { key, shape } of stacked) {
      need(key, "", "the stacks consist of it");
      if (shape.at(-3) % frames) refusals.push(`Change the number of frames: ${key} of ${shape.join("x")} is no stack of ${frames}.`);
    }
    if (recurrent && twoFrames)
      refusals.push("Do not store the next frame: with it, the sampler of CatFrames draws single rows, and the policy needs slices.");
    const reader = oneFrame ? "StackFrames" : (slices || twoFrames) && "SliceSampler";
    if (reader && storage in ROWS_IN_A_LIST)
      refusals.push(`Choose LazyTensorStorage or LazyMemmapStorage: ${reader} cannot read a ${ROWS_IN_A_LIST[storage]}.`);
    if (stacked.length && storage === "compressed")
      refusals.push("To compress single frames, use CompressedPixels of the guide: a row of CompressedListStorage takes more than a frame.");
    if (storage === "compressed" && entriesOf(specs).some(({ dtype }) => dtype === "bfloat16"))
      refusals.push("Choose another storage: CompressedListStorage cannot compress bfloat16.");
    if (refusals.length) return [REFUSED, ...refusals.map((text) => `# ${text}`)].join("\n");

    // The collector.
    const notes = [`# ${workers > 1 ? "make_env" : "env"} and policy are yours.`];
    for (const { key, shape } of stacked) {
      const frame = [...shape.slice(0, -3), shape.at(-3) / frames, ...shape.slice(-2)];
      notes.push(`# "${key}" of the environment is one frame, of ${frame.join("x")}; the policy reads "${key}_stack".`);
    }
    if (recurrent) notes.push("# The environment has the primer of the policy.");
    const catFrames = (more = "") => `CatFrames(N=${frames}, dim=-3, in_keys=${list(stacked)}, out_keys=${list(stacked, "_stack")}${more})`;
    const floats = seen.filter(isFloat);
    const stackedFloats = stacked.filter(isFloat).map(({ key }) => ({ key: `${key}_stack` }));
    const transforms = [
      inputs.step_count && "StepCounter()",
      inputs.is_init && "InitTracker()",
      stacked.length && catFrames(),
      inputs.delta && floats.length && `NextObservationDelta(in_keys=${list([...floats, ...stackedFloats])})`,
    ].filter(Boolean);
    const appended = transforms.map((one) => `env = env.append_transform(${one})`);
    const maker = transforms.length ? "make_transformed_env" : "make_env";
    const options = [
      "policy",
      `frames_per_batch=${inputs.frames_per_batch}`,
      "total_frames=-1",
      workers > 1 && 'cat_results="stack"',
      compact && "compact_obs=True",
      !inputs.traj_ids && "track_traj_ids=False",
    ].filter(Boolean).join(", ");
    const collecting = [];
    if (!(workers > 1)) collecting.push(...appended);
    else if (transforms.length)
      collecting.push(`def ${maker}():`, ...["env = make_env()", ...appended, "return env"].map((one) => `    ${one}`), "");
    collecting.push(`collector = ${workers > 1 ? `MultiSyncCollector([${maker}] * ${workers}` : "Collector(env"}, ${options})`);

    // The buffer.
    const kind = { ...ROWS_IN_A_LIST, tensor: "LazyTensorStorage" }[storage] ?? "LazyMemmapStorage";
    const storing = [`storage = ${kind}(${inputs.rows}${storage === "scratch" ? ', scratch_dir="replay"' : ""})`];
    if (storage === "scratch") notes.push('# The folder "replay" has to be new.');
    if (storage in ROWS_IN_A_LIST) notes.push("# The Python objects of each row are not planned: with small rows, they take most of the memory.");
    const batchSize = recurrent ? inputs.slices * inputs.length : 256;
    const given = [];
    const restored = [];
    if (storage === "compressed") restored.push('lambda rows: rows.unflatten_keys(".")');
    if (deltas.length) restored.push(`NextObservationDelta(in_keys=${list(deltas)})`);
    if (twoFrames) {
      const byId = kept("collector.traj_ids") ? ', traj_key=("collector", "traj_ids")' : "";
      storing.push(`stack = ${catFrames(', reset_key="_reset"')}`);
      storing.push(`stacking, sampler = stack.make_rb_transform_and_sampler(batch_size=${batchSize}${byId})`);
      given.push("sampler=sampler");
      restored.push("stacking");
      if (inputs.index) notes.push("# A plain ReplayBuffer, for the sampler of CatFrames: a row takes 8 bytes less than planned.");
    }
    if (slices) given.push(`sampler=SliceSampler(slice_len=${recurrent ? inputs.length : 8}, traj_key=("collector", "traj_ids"))`);
    if (oneFrame) {
      stacked.forEach(({ key }) => restored.push(`StackFrames(storage, ${frames}, "${key}", "${key}_stack")`));
      notes.push('# Copy StackFrames from the guide "Store pixels at one frame per step". Train on the "complete" rows.');
      if (!inputs.index) notes.push("# StackFrames needs a TensorDictReplayBuffer: a row takes 8 bytes more than planned.");
    }
    const integers = shifted.filter((entry) => !isFloat(entry));
    for (const dtype of new Set(integers.map((entry) => entry.dtype))) {
      const wide = data.ITEMSIZES[dtype] > 2 ? "float64" : "float32";
      restored.push(`DTypeCastTransform(torch.${dtype}, torch.${wide}, in_keys=${list(integers.filter((entry) => entry.dtype === dtype))})`);
    }
    if (shifted.length) {
      restored.push(`NextStateReconstructor(${list(shifted)}, step_count_key="step_count")`);
      notes.push(`# Where a slice ends, the next observation is NaN${integers.length ? "; integers become floats, which can be NaN" : ""}.`);
    }
    if (restored.length) given.push(`transform=${composed(restored)}`);
    const left = parts.filter((part) => !part.inBuffer).map(({ key }) => {
      const keys = key.split(".").map((one) => `"${one}"`).join(", ");
      return key.includes(".") ? `(${keys})` : keys;
    });
    const buffer = (inputs.index && !twoFrames) || oneFrame ? "TensorDictReplayBuffer" : "ReplayBuffer";
    const excluded = left.length ? `.exclude(${left.join(", ")})` : "";
    const body = [
      ...collecting,
      ...storing,
      `buffer = ${buffer}(`,
      ...["storage=storage", ...given, `batch_size=${batchSize}`].map((one) => `    ${one},`),
      ")",
      "for batch in collector:",
      `    buffer.extend(batch.reshape(-1)${excluded}${storage === "compressed" ? '.flatten_keys(".")' : ""})`,
      "    sample = buffer.sample()",
    ].join("\n");
    const used = (names) => names.filter((name) => new RegExp(`\\b${name}\\(`).test(body)).join(", ");
    const imports = Object.entries(MODULES).map(([module, names]) => [module, used(names)]).filter(([, names]) => names);
    return [
      ...notes,
      ...(body.includes("torch.") ? ["import torch"] : []),
      ...imports.map(([module, names]) => `from ${module} import ${names}`),
      "",
      body,
    ].join("\n");
  };

  /* -- What one other choice would change, in bytes: of the buffer, of the peak while collecting -- */
  const SWITCHES = ["compact", "delta", "at_sampling", "traj_ids"];
  const savings = (asked, dropped) => {
    const { specs, policy, storage, inputs } = asked;
    const plan = (changed) => planned(specs, policy, dropped, { ...inputs, ...changed }).totals;
    const memory = (totals) => totals.buffer_process + totals.buffer_shared;
    const buffer = (totals) => memory(totals) + totals.buffer_disk;
    const peak = (totals) => totals.collector_process + totals.collector_shared;
    const now = plan({});
    const needed = inputs.compact || inputs.at_sampling || inputs.recurrent; // the ids
    const found = SWITCHES.filter((name) => name !== "traj_ids" || !needed).map((name) => {
      const other = plan({ [name]: 1 - inputs[name] });
      return { name, less: buffer(now) - buffer(other), lessPeak: peak(now) - peak(other) };
    }).filter(({ less, lessPeak }) => less || lessPeak);
    const none = { tensor: 0, memmap: 0, list: 0, compressed: 0, scratch: 0 };
    const onDisk = plan({ ...none, memmap: 1, scratch: 1 });
    if (storage !== "scratch") found.push({ name: "scratch", less: memory(now), onDisk: onDisk.buffer_disk });
    const images = entriesOf(specs).some(({ shape }) => shape.length > 2);
    const compressed = { ...asked, storage: "compressed", inputs: { ...inputs, ...none, compressed: 1 } };
    const refused = code(compressed, planned(specs, policy, dropped, compressed.inputs), dropped).startsWith(REFUSED);
    if (images && storage !== "compressed" && !refused) {
      const { buffer_process: least, buffer_process_most: most } = plan(compressed.inputs);
      found.push({ name: "compressed", now: buffer(now), least, most });
    }
    return found;
  };

  return { planned, code, savings };
};

(() => {
  const form = document.querySelector("form.memory-planner");
  if (!form) return;
  const data = JSON.parse(form.nextElementSibling.textContent);
  const answer = form.querySelector(".planner-answer");
  const results = form.querySelector(".planner-results");
  const said = form.querySelector(".planner-error");
  const LESSONS = {
    compact: "../tutorials/memory/missing_next_observations.html",
    delta: "../tutorials/memory/saving_by_observation_size.html#memory-delta-limits",
    at_sampling: "../how-to/pixel_replay.html",
    traj_ids: "../tutorials/memory/saving_by_observation_size.html#what-else-is-in-a-frame",
    scratch: "../tutorials/memory/buffers_on_disk.html",
    compressed: "../performance/replay_buffers.html#compression",
  };
  let dropped = new Set();
  const { planned, code, savings } = memoryPlanner(data);
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

  /* What is written as code in the form is code in a sentence, too. */
  const codes = [...form.querySelectorAll("label code, [name=storage] option")].map((one) => one.textContent);
  const withCode = (made, text) => {
    const found = codes.find((one) => text.includes(one));
    if (!found) return made.append(text), made;
    const [before, ...after] = text.split(found);
    made.append(before);
    for (const [number, word] of found.split(" ").entries())
      made.append(number ? " " : "", /^(with|without)$/.test(word) ? word : element("code", word));
    made.append(after.join(found));
    return made;
  };
  const codeHead = (text) => {
    const made = element("th", "", { scope: "row" });
    made.append(element("code", text));
    return made;
  };

  const shownParts = ({ parts, totals }) => {
    const largest = Math.max(...parts.map((part) => part.inBatch), 1);
    const table = element("table", "", { class: "table planner-parts" });
    const head = table.createTHead().insertRow();
    ["Key", "Row of the batch", "", "Stored", "Row of the buffer"].forEach((text) =>
      head.append(element(text ? "th" : "td", text)));
    head.cells[1].className = head.cells[4].className = "is-number";
    const body = table.createTBody();
    for (const part of parts) {
      const row = body.insertRow();
      row.append(codeHead(part.key), element("td", inBytes(part.inBatch), { class: "is-number" }));
      const bar = row.insertCell();
      bar.append(element("span", "", { class: "planner-bar", style: `inline-size: ${(100 * part.inBatch) / largest}%` }));
      const kept = element("input", "", { type: "checkbox", name: "keep", value: part.key, "aria-label": `Store ${part.key}` });
      kept.checked = Boolean(part.stored) && !dropped.has(part.key);
      kept.disabled = !part.stored;
      row.insertCell().append(kept);
      row.append(element("td", part.inBuffer ? inBytes(part.inBuffer) : "", { class: "is-number" }));
    }
    const sums = [["Total", inBytes(totals.row), inBytes(totals.stored_row)]];
    const added = totals.stored_row - totals.kept;
    if (added) sums.unshift(["index, of the buffer", "", inBytes(added)]);
    for (const [name, inBatch, inBuffer] of sums) {
      const row = body.insertRow();
      row.append(element("th", name, { scope: "row" }), element("td", inBatch, { class: "is-number" }));
      row.append(element("td", "", { colspan: "2" }), element("td", inBuffer, { class: "is-number" }));
    }
    return table;
  };

  /* What most readers came for. */
  const PLACES = { buffer_process: "in memory", buffer_shared: "in shared memory", buffer_disk: "on disk" };
  const shownAnswer = ({ totals }) => {
    const place = Object.keys(PLACES).find((name) => totals[name]) ?? "buffer_process";
    const answers = {
      "Replay buffer": `${inBytes(totals[place])} ${PLACES[place]}`,
      "Peak while collecting": inBytes(totals.collector_process + totals.collector_shared),
    };
    return Object.entries(answers).map(([name, text]) => {
      const line = element("p", `${name} `, { class: "planner-lead" });
      line.append(element("strong", text));
      return line;
    });
  };

  const shownTotals = ({ totals }, storage) => {
    const table = element("table", "", { class: "table planner-totals" });
    table.createCaption().textContent = "Memory of this plan";
    const body = table.createTBody();
    for (const [name, title] of Object.entries(data.titles)) {
      if (!totals[name] || (name === "buffer_process_most" && storage !== "compressed")) continue;
      const row = body.insertRow();
      row.append(element("th", title, { scope: "row" }), element("td", inBytes(totals[name]), { class: "is-number", "data-bytes": name }));
    }
    return table;
  };

  const shownSavings = (asked) => {
    const list = element("ul", "", { class: "planner-savings" });
    const option = (name) => form.querySelector(`[name=storage] [value=${name}]`).textContent;
    const change = (bytes) => `${inBytes(Math.abs(bytes))} ${bytes > 0 ? "smaller" : "larger"}`;
    const sentences = {
      scratch: ({ less, onDisk }) => `With ${option("scratch")} the buffer would take ${inBytes(less)} less memory, and ${inBytes(onDisk)} of disk`,
      compressed: ({ now, least, most }) =>
        `With ${option("compressed")} the buffer would take ${inBytes(least)} to ${inBytes(most)}, not ${inBytes(now)}`,
    };
    const ofSwitch = ({ name, less, lessPeak }) => {
      const label = form.elements[name].parentNode.textContent.trim();
      const changes = [less && `the buffer would be ${change(less)}`, lessPeak && `the peak while collecting ${change(lessPeak)}`];
      return `${asked.inputs[name] ? "Without" : "With"} ${label} ${changes.filter(Boolean).join(", and ")}`;
    };
    for (const saving of savings(asked, dropped)) {
      const item = withCode(element("li"), `${(sentences[saving.name] ?? ofSwitch)(saving)}. `);
      item.append(element("a", "What it costs", { href: LESSONS[saving.name] }));
      list.append(item);
    }
    return list;
  };

  const show = () => {
    const asked = inputsOf();
    said.textContent = "";
    try {
      if (!form.checkValidity()) throw new Error("Each number has to be there, and not below zero.");
      const plan = planned(asked.specs, asked.policy, dropped, asked.inputs);
      const pre = element("pre", code(asked, plan, dropped), { tabindex: "0", "aria-label": "Code of this plan" });
      answer.replaceChildren(...shownAnswer(plan), shownTotals(plan, asked.storage));
      results.replaceChildren(pre, shownParts(plan), shownSavings(asked));
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
