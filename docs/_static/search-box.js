/* The search fields: hits as one types, by mouse, keys and screen reader.
   docs/_ext/site/search_index.py writes the fields and _static/search.js, the engine with its index,
   which is loaded when a field is first focused, under the checksum that this script's address has. */
"use strict";

(() => {
  const FEW = 8; // hits below a field; the search page shows all
  const MARKED = "mark"; // the terms whose words a page marks
  const BEST = 3; // hits before those that are grouped by their kind
  const GROUPS = {
    symptom: "Symptoms", "how-to guide": "How-to guides", tutorial: "Tutorials", "glossary term": "Glossary terms",
    API: "API", performance: "Performance", reference: "Reference", "old name": "Old names", record: "Records",
  };
  const root = document.documentElement.dataset.content_root;
  const NOWHERE = [
    ["reference/error_index.html", "Error index", "every message that a page explains, by its text"],
    ["reference/triage.html", "Triage", "from what you see to the part that is at fault"],
    ["reference/doctor.html", "Doctor", "one call examines your collector, buffer and loss"],
  ];

  const index = document.currentScript.src.replace("search-box.js", "search.js");
  let loading = null, reading = null;
  const fetched = () =>
    (loading ||= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = index;
      script.onload = () => resolve(ManualSearch);
      script.onerror = () => {
        loading = reading = null;
        reject(new Error(`no ${script.src}`));
      };
      document.head.append(script);
    }));
  const load = () => (reading ||= fetched().then((engine) => engine.ready().then(() => engine)));
  window.loadSearch = load;

  const element = (tag, name, ...children) => {
    const made = document.createElement(tag);
    made.className = name;
    made.append(...children);
    return made;
  };

  /* [name, hits]: the best ones, then those of one kind together, the kind of the best of them first. */
  const grouped = (hits) => {
    const rest = hits.slice(BEST);
    const kinds = [...new Set(rest.map(({ kind }) => kind))];
    const groups = kinds.map((kind) => [GROUPS[kind], rest.filter((hit) => hit.kind === kind)]);
    return [["Best matches", hits.slice(0, BEST)], ...groups].filter(([, own]) => own.length);
  };

  const attach = (form) => {
    const input = form.elements.q;
    const list = form.querySelector("[role=listbox]");
    const status = form.querySelector("[role=status]");
    const whole = form.classList.contains("is-whole");
    let active = -1;
    const optionsOf = () => [...list.querySelectorAll("[role=option]")];

    const group = (name, options) => {
      const heading = element("div", "search-group", name);
      heading.id = `group-of-${options[0].id}`;
      heading.setAttribute("role", "presentation");
      const made = element("div", "", heading, ...options);
      made.setAttribute("role", "group");
      made.setAttribute("aria-labelledby", heading.id);
      return made;
    };

    const option = (href, n, ...children) => {
      const made = element("a", "search-hit", ...children);
      Object.assign(made, { href, id: `${list.id}-${n}`, tabIndex: -1 });
      made.setAttribute("role", "option");
      return made;
    };

    const hit = (engine, { address, kind, title, heading, snippet, terms }, n) => {
      const marks = (text) =>
        engine.marked(text, terms, false).map(([words, asked]) => (asked ? element("mark", "", words) : words));
      const [page, anchor] = address.split("#");
      const found = terms.filter((term) => /^\w+$/.test(term)).slice(0, 8);
      const query = found.length ? `?${MARKED}=${encodeURIComponent(found.join(" "))}` : "";
      return option(
        root + page + query + (anchor ? `#${anchor}` : ""),
        n,
        element("span", "search-kind", kind),
        element("span", "search-title", ...marks(title)),
        ...(anchor ? [element("span", "search-page", heading)] : []),
        element("span", "search-snippet", ...marks(snippet)),
      );
    };

    const select = (n) => {
      const options = optionsOf();
      active = n;
      options.forEach((one, at) => one.setAttribute("aria-selected", at === active));
      if (active < 0) return input.removeAttribute("aria-activedescendant");
      input.setAttribute("aria-activedescendant", options[active].id);
      options[active].scrollIntoView({ block: "nearest" });
    };

    const close = () => {
      list.hidden = true;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
      active = -1;
    };

    const show = async () => {
      const query = input.value;
      const engine = await load();
      if (query !== input.value) return; // a later letter shows its own
      if (!query.trim()) {
        status.textContent = "";
        list.replaceChildren();
        return close();
      }
      const hits = engine.search(query);
      const shown = whole ? hits : hits.slice(0, FEW);
      let count = 0;
      const places = grouped(shown).map(([name, own]) => group(name, own.map((one) => hit(engine, one, count++))));
      if (hits.length > shown.length) {
        const all = `${form.getAttribute("action")}?q=${encodeURIComponent(query)}`;
        places.push(option(all, count++, element("span", "search-title", "All that is found")));
      }
      const [unknown] = hits.unknown;
      if (!hits.length || unknown || !hits.isKnown) {
        const others = NOWHERE.filter(([page]) => !location.pathname.endsWith(page));
        const leads = others.map(([page, title, what]) =>
          option(root + page, count++, element("span", "search-title", title), element("span", "search-snippet", what)),
        );
        places.splice(hits.isKnown ? places.length : 0, 0, group("Where to look next", leads));
      }
      const noPage = unknown ? `No page has “${unknown}”. ` : "";
      const nowhere = hits.isKnown ? noPage : "No page knows this message. ";
      status.textContent = nowhere + (hits.length ? `${hits.length} found` : "Nothing found. These lead on:");
      list.replaceChildren(...places);
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
      select(hits[0]?.sure ? 0 : -1);
      if (!whole) list.scrollTop = 0;
    };

    input.addEventListener("focus", load, { once: true });
    input.addEventListener("input", show);
    input.addEventListener("focus", () => input.value && list.hidden && show());
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && !list.hidden) {
        event.preventDefault();
        const { length } = optionsOf();
        select(active < 0 && step < 0 ? length - 1 : (active + step + length) % length);
      } else if (event.key === "Enter" && active >= 0 && !event.isComposing) {
        event.preventDefault();
        optionsOf()[active].click();
      } else if (event.key === "Enter" && whole && !list.hidden && !event.isComposing) {
        event.preventDefault(); // all hits are here; in other fields the form leads to the search page
        select(0);
      } else if (event.key === "Escape" && !list.hidden && !form.closest("dialog")) {
        close();
      }
    });
    /* A field of one line joins the lines of a traceback; of several only the message is wanted. */
    input.addEventListener("paste", async (event) => {
      const text = event.clipboardData.getData("text");
      if (!text.trim().includes("\n")) return;
      event.preventDefault();
      const engine = await load();
      input.setRangeText(engine.message(text).replace(/\s+/g, " "), input.selectionStart, input.selectionEnd, "end");
      show();
    });
    if (!whole)
      form.addEventListener("focusout", (event) => !form.contains(event.relatedTarget) && setTimeout(close, 200));
    const query = whole && new URLSearchParams(location.search).get("q");
    if (query) {
      input.value = query;
      input.focus();
      show();
    }
  };

  document.querySelectorAll("form.manual-search").forEach(attach);

  /* "/" opens the search, as the theme's Ctrl+K does. */
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing) return;
    event.preventDefault();
    document.querySelector(".search-button__button").click();
  });

  /* Who comes from a hit sees the words marked, one of them in view: in the section, or where the
     page first has one. The address is clean again at once, to be copied. */
  const mark = ({ marked }, terms) => {
    const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT, (text) =>
      text.parentNode.closest("pre, script, style, svg, form, button") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
    );
    const runs = []; // texts of one word where it may break
    while (texts.nextNode()) {
      const text = texts.currentNode;
      const goesOn = text.previousSibling?.localName === "wbr" && text.previousSibling.previousSibling === runs.at(-1)?.at(-1);
      goesOn ? runs.at(-1).push(text) : runs.push([text]);
    }
    for (const run of runs) {
      const pieces = marked(run.map(({ data }) => data).join(""), terms);
      if (!pieces.some(([, asked]) => asked)) continue;
      let words = "", asked;
      for (const text of run) {
        const parts = [];
        for (let left = text.data.length, part; left; left -= part.length) {
          while (!words) [words, asked] = pieces.shift();
          part = words.slice(0, left);
          words = words.slice(left);
          parts.push(asked ? element("mark", "search-mark", part) : part);
        }
        text.replaceWith(...parts);
      }
    }
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const place = target?.closest("section, dl") || document.querySelector("article");
    const marks = [...place.querySelectorAll(".search-mark")].filter((one) => one.checkVisibility());
    const seen = ({ top, bottom }) => top > 60 && bottom < innerHeight;
    if (marks.length && !marks.some((one) => seen(one.getBoundingClientRect())))
      marks[0].scrollIntoView({ block: "center" });
  };
  const address = new URL(location);
  const terms = address.searchParams.get(MARKED);
  if (terms) {
    address.searchParams.delete(MARKED);
    history.replaceState(history.state, "", address);
    const loaded = new Promise((resolve) => window.addEventListener("load", () => setTimeout(resolve, 50)));
    Promise.all([fetched(), loaded]).then(([engine]) => mark(engine, terms.split(" ")));
  }
})();
