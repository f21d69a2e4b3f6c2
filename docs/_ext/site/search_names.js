/* Search by name. Sphinx copies this into language_data.js (html_search_scorer in conf.py), which
   the search page loads after searchtools.js and before the index.

   A hit on an index entry is titled like its page; here it gets the name of what it leads to, as
   docs/_ext/site/search_index.py lists it, and the glossary's own words below it. A query is looked up
   by the name that stands in it: ("collector", "traj_ids"), Collector._shuttle, workers.

   Of two pages with a word of the query in their titles, the one with more of them comes first. */

(() => {
  let names = null;
  let asked = []; // the words of the query

  /* {"12#term-carrier": "Glossary > carrier"}, worded as Sphinx words the hit on a section. */
  const named = () => {
    if (names) return names;
    names = {};
    for (const [title, places] of Object.entries(Search._index.alltitles))
      for (const [page, id] of places)
        if (id !== null)
          names[`${Search._index.docnames[page]}#${id}`] =
            `${Search._index.titles[page]} > ${title}`;
    return names;
  };

  Scorer.score = (result) => {
    const [page, title, anchor, , score, , kind] = result;
    if (kind === SearchResultKind.text)
      return score + asked.filter((word) => title.toLowerCase().includes(word)).length;
    if (kind !== SearchResultKind.index) return score;
    result[1] = named()[page + anchor] || result[1];
    if (score < 100) return score / 10; // a part of a name, below pages of the whole name
    return anchor.startsWith("#knob-") ? score - 1 : score; // the definition of a word comes first
  };

  const known = (name) =>
    Object.hasOwn(Search._index.indexentries, name.toLowerCase().trim());

  const nameIn = (query) => {
    const plain = query.replace(/=.*|\(\)|[()[\]"'`“”]/g, " ").trim();
    const last = plain.split(/[\s,]*,[\s,]*/).filter(Boolean).pop() || plain;
    const argument = /\(\s*(\w+)\s*=/.exec(query)?.[1] ?? query;
    const called = query.trim().split("(")[0];
    const forms = [query, argument, plain, last];
    for (const form of [called, last]) if (!/\s/.test(form)) forms.push(form.split(".").pop());
    forms.push(...forms.map((form) => form.trim().replace(/s$/, "")));
    forms.push(...forms.map((form) => form.trim().replace(/[\s-]+/g, "_")));
    forms.push(...forms.map((form) => form.trim().replace(/[_-]+/g, " ").trim()));
    return forms.find(known) || query;
  };

  const parse = Search._parseQuery;
  Search._parseQuery = (query) => {
    const parsed = parse(query);
    asked = query.toLowerCase().match(/\w{3,}/g) || [];
    parsed[0] = nameIn(query);
    return parsed;
  };

  /* Below a hit: the definition of the term or knob, the row of the old name. */
  const read = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    if (!/^#(term|old|knob)-/.test(anchor || "")) return read(html, anchor);
    let part = new DOMParser().parseFromString(html, "text/html").querySelector(anchor);
    const row = part?.closest("tr");
    if (row) return [...row.cells].map((cell) => cell.textContent).join(" | ");
    while (part?.tagName === "DT") part = part.nextElementSibling;
    return part?.querySelector("p")?.textContent || read(html, anchor);
  };
})();
