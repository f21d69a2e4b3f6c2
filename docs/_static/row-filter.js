/* The filter above rows: of the debugging map, whose rows this fills as well, and of the table of knobs.
   docs/_ext/support/row_filter.py writes the form; its docstring says what a page is without this. */
"use strict";

(() => {
  const filter = (form) => {
    const rows = [...document.querySelectorAll(form.dataset.rows)].map((row) => ({ row, group: row.parentNode }));
    if (!rows.length) return;
    const groups = [...new Set(rows.map(({ group }) => group))];
    const nearest = document.createElement(groups[0].localName === "tbody" ? "tbody" : "div");
    groups[0].before(nearest);

    /* What is chosen: the words, and the pressed button of each name. */
    const output = form.querySelector("output");
    const noun = output.textContent.split(" ").pop();
    const buttons = [...form.querySelectorAll("button")];
    const isPressed = (button) => button.getAttribute("aria-pressed") === "true";
    const chosen = () => {
      const own = buttons.filter(isPressed).map(({ name, value }) => [name, value]);
      return { q: form.elements.q.value, ...Object.fromEntries(own) };
    };
    const choose = ({ q = "", ...values }) => {
      form.elements.q.value = q;
      buttons.forEach((button) => button.setAttribute("aria-pressed", values[button.name] === button.value));
    };

    /* The rows that the engine of the search fields finds, the nearest first. */
    const root = document.documentElement.dataset.content_root;
    const absolute = (address) => new URL(address, document.baseURI).href;
    const nearestTo = async (words) => {
      const byAddress = new Map(rows.map((one) => [absolute(one.row.dataset.target ?? one.row.querySelector("a").href), one]));
      const own = ({ address }) => byAddress.get(absolute(root + address));
      const hits = (await loadSearch()).search(words, form.dataset.kind).filter(own);
      const enough = form.dataset.near * Math.max(...hits.map(({ score }) => score));
      return hits.filter(({ score }) => score >= enough).map(own);
    };
    const show = async () => {
      const { q, ...marks } = chosen();
      const asked = q.trim();
      const near = asked ? await nearestTo(asked) : rows;
      if (q !== form.elements.q.value) return; // a later letter shows its own
      rows.forEach(({ row }) => (row.hidden = true));
      near.forEach(({ row, group }) => {
        row.hidden = Object.entries(marks).some(([name, value]) => value !== row.dataset[name]);
        (asked ? nearest : group).append(row);
      });
      const seen = rows.filter(({ row }) => !row.hidden);
      groups.forEach((group) => (group.hidden = !seen.some(({ row }) => row.parentNode === group)));
      nearest.parentNode.hidden = !seen.length; // the heading above them
      output.textContent = `${seen.length} of ${rows.length} ${noun}` +
        (!seen.length ? (asked ? ". Try other words, or another way:" : ". Press fewer buttons.") : asked ? ", the nearest first. " : "");
      if (!asked) return;
      const whole = document.createElement("a");
      whole.href = `${root}search.html?q=${encodeURIComponent(asked)}`;
      whole.textContent = "Search the whole manual";
      output.append(" ", whole);
    };
    const change = () => {
      show();
      const address = new URLSearchParams(Object.entries(chosen()).filter(([, value]) => value)).toString();
      history.replaceState(null, "", location.pathname + (address && `?${address}`));
    };
    form.addEventListener("input", change);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (!button) return;
      choose({ ...chosen(), [button.name]: isPressed(button) ? "" : button.value });
      change();
    });
    if (location.search) {
      choose(Object.fromEntries(new URLSearchParams(location.search)));
      show();
    }

    /* A link leads to a symptom, open, and to a section; also where the filter hides it. */
    const lead = () => {
      const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (!place) return;
      if (place.closest("[hidden]")) {
        choose({});
        show();
      }
      if (place.matches("details.symptom")) {
        fill(place);
        place.open = true;
      }
      place.scrollIntoView();
    };
    window.addEventListener("hashchange", lead);
    lead();
  };

  /* A row is filled when a reader opens it: made at once, the rows would keep a phone from answering. */
  const copyLink = async (event) => {
    const link = event.target;
    event.preventDefault();
    await navigator.clipboard.writeText(location.href.split(/[?#]/)[0] + link.hash);
    link.textContent = "Link copied";
  };
  const fill = (row) => {
    const kept = row.querySelector("noscript");
    if (!kept) return;
    kept.outerHTML = kept.textContent;
    const code = row.querySelector(".highlight-python pre");
    code.id = `check-of-${row.id}`;
    // As sphinx-copybutton writes it, which saw no code here.
    code.insertAdjacentHTML("afterend", `<button class="copybtn o-tooltip--left" data-tooltip="${messages[locale].copy}"
      data-clipboard-target="#${code.id}">${iconCopy}</button>`);
    if (!navigator.clipboard) return; // where a browser lets a page copy, the link of a symptom is copied
    const link = row.querySelector(".symptom-link");
    link.textContent = "Copy link";
    link.addEventListener("click", copyLink);
  };
  document.addEventListener("click", ({ target }) => {
    const summary = target.closest("details.symptom > summary");
    if (summary) fill(summary.parentNode);
  });
  /* All of them for a printer, and for who lets the browser find words in the page. */
  const fillAll = () => document.querySelectorAll("details.symptom").forEach(fill);
  window.addEventListener("beforeprint", fillAll);
  document.addEventListener("keydown", ({ key, ctrlKey, metaKey }) => {
    if (key === "F3" || ((ctrlKey || metaKey) && key.toLowerCase() === "f")) fillAll();
  });

  /* The theme lets the keyboard reach what scrolls; in a closed row nothing is drawn, nor scrolls. */
  const reach = ({ target }) => {
    if (!target.matches("details.symptom")) return;
    fill(target); // a script, or words that the browser found, may have opened it
    for (const code of target.querySelectorAll("pre"))
      if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
  };
  document.addEventListener("toggle", reach, true);

  document.querySelectorAll("form.row-filter").forEach(filter);
})();
