/* The search of the manual, for the browser and for node: ManualSearch.search("bus error").
   docs/_ext/site/search_index.py puts this behind the library and the stemmer, and the index behind
   this; how words become stems is written there and here. */
"use strict";

// eslint-disable-next-line no-unused-vars
const ManualSearch = (() => {
  /* -- Weights. A field says how much a word in it tells, a kind how likely it is what one wants. */
  const FIELDS = { title: 6, also: 4, messages: 4, page: 1.5, body: 1 };
  const KINDS = {
    symptom: 1.3, "how-to": 1.3, tutorial: 1, term: 1.1, performance: 1, reference: 0.9, API: 0.8, change: 0.7,
    record: 0.3,
  };
  const NAMED = ["change", "API", "knob", "term"]; // the last comes first under its own name
  const SYNONYM = 0.5;
  const PART_OF_NAME = 0.3; // slice, of SliceSampler
  const COVERED = 1; // power of the number of words that an entry has
  const BM25 = { k: 1.2, b: 0.7, d: 0.5 };
  const PREFIX = 0.4;
  const FUZZY = 0.5;
  const SAME_PAGE = 2; // entries of one page among the hits
  const MOST = 30;

  /* -- Words, as in search_index.py. */
  const WORD = /[A-Za-z_][A-Za-z0-9_]*/g;
  const PART = /[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+/g;
  const stemmer = new EnglishStemmer();
  const known = new Map();
  const split = (word) => {
    if (!known.has(word)) {
      const parts = word.match(PART) || [];
      const own = parts.length > 1 ? [word.toLowerCase().replace(/^_+|_+$/g, "")] : [];
      const stems = parts.filter((part) => part[0] > "9").map((part) => stemmer.stemWord(part.toLowerCase()));
      known.set(word, [...own, ...stems]);
    }
    return known.get(word);
  };
  const stems = (text) => (text.match(WORD) || []).flatMap(split);

  /* -- A pasted message: the last line that names an exception and what follows it, without what
        differs from run to run. */
  const RAISED = /^(?:.*\s)?(?:\w+\.)*\w*(?:Error|Warning|Exception|Interrupt|Exit)\b:?/;
  const VARYING = [
    /(?:File )?"[^"]*[/\\][^"]*"(?:, line \d+)?/g, // the place in a file
    /(?:[\w.~-]*[/\\])+[\w.-]*/g,
    /torch\.Size\([^)]*\)|\[[\d\s,.x-]*\]|\([\d\s,.x-]*\)/g, // shapes
    /\b0x[\da-f]+\b|\b\d[\w.]*/gi,
  ];
  const message = (text) => {
    const lines = text.trim().split("\n");
    const last = lines.findLastIndex((line) => RAISED.test(line));
    return lines.length > 1 && last >= 0 ? lines.slice(last).join("\n").trim() : text;
  };
  const steady = (text) => VARYING.reduce((rest, pattern) => rest.replace(pattern, " "), text);

  /* -- The index. */
  let entries, index, stop, synonyms, named;
  const concepts = (list) => {
    const text = ` ${list.join(" ")} `;
    return synonyms.flatMap((phrases, n) => (phrases.some((phrase) => text.includes(` ${phrase} `)) ? [`=${n}`] : []));
  };
  const telling = (text) => {
    const all = stems(text);
    return [...new Set([...all.filter((one) => one.length > 1 && !stop.has(one)), ...concepts(all)])];
  };
  const plain = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "").replace(/(?<=...)s$/, "");

  const load = (data) => {
    const terms = data.terms.split(" ");
    stop = new Set(data.stop);
    synonyms = data.synonyms;
    named = new Map();
    entries = data.entries.map(([page, kind, anchor, title, snippet, also, messages, body], id) => {
      let term = 0;
      const ids = body ? body.split(" ").map((step) => (term += parseInt(step, 36))) : [];
      const [name, heading] = data.pages[page];
      const ascii = title.toLowerCase().normalize("NFKD").replace(/[^\x00-\x7f]/g, "");
      const slug = ascii.replace(/[^a-z0-9]+/g, "-").replace(/^[-0-9]+|-+$/g, ""); // docutils' make_id
      for (const key of new Set([plain(title), plain(title.replace(/ \(.*\)$/, ""))]))
        named.set(key, [...(named.get(key) || []), id]);
      return {
        id, kind: data.kinds[kind], address: `${name}.html` + (anchor && `#${anchor.replace("*", slug)}`), title, snippet, heading,
        fields: {
          id, title: telling(title), also: telling(also), messages: telling(steady(messages)),
          page: anchor ? telling(heading) : [], body: ids.map((one) => terms[one]),
        },
      };
    });
    index = new MiniSearch({
      fields: Object.keys(FIELDS),
      extractField: (fields, name) => fields[name],
      tokenize: (list) => (Array.isArray(list) ? list : list.split(" ")),
      processTerm: (term) => term,
      stringifyField: (value) => value,
    });
    index.addAll(entries.map(({ fields }) => fields));
  };

  /* -- The names that stand in a query: traj_ids of ("collector", "traj_ids"), _shuttle of
        Collector._shuttle, trajectory_key of SliceSampler(trajectory_key=...). */
  const names = (query) => {
    const bare = query.replace(/=.*|\(\)|[()[\]"'`“”]/g, " ").trim();
    const last = bare.split(/\s*,\s*/).filter(Boolean).pop() || bare;
    const argument = /\(\s*(\w+)\s*=/.exec(query)?.[1] ?? query;
    const forms = [query, argument, bare, last, query.trim().split("(")[0]];
    const dotted = forms.filter((form) => !/\s/.test(form.trim())).map((form) => form.split(".").pop());
    return new Set([...forms, ...dotted].map(plain).filter(Boolean));
  };

  /* -- Asking. A word that the index does not have stands for one with two letters swapped back, for
        the known beginning of it, or (`fuzzy` below) for one a letter or two away. */
  const has = (term) => index._index.has(term);
  const swaps = (word) =>
    [...word].slice(1).map((_, n) => word.slice(0, n) + word[n + 1] + word[n] + word.slice(n + 2));
  const mended = (word) => {
    const own = split(word);
    if (word.length < 4 || own.some(has) || stop.has(own[0])) return own;
    const swapped = swaps(word.toLowerCase()).flatMap(split).filter(has);
    if (swapped.length) return swapped;
    for (let end = word.length - 1; end > 4 && end > word.length / 2; end -= 1)
      if (has(word.slice(0, end).toLowerCase())) return [...own, word.slice(0, end).toLowerCase()];
    return own;
  };

  const search = (query) => {
    const text = steady(message(query));
    const pasted = RAISED.test(text) && /\s/.test(text.trim());
    const weights = new Map(); // of each term, and the words of the query that it stands for
    const words = text.match(WORD) || [];
    words.forEach((word, n) => {
      const own = pasted ? split(word) : mended(word);
      own.forEach((term, at) => {
        if (term.length < 2 || stop.has(term)) return;
        const weight = at && has(own[0]) ? PART_OF_NAME : 1;
        const known = weights.get(term);
        if (!known || known.weight < weight) weights.set(term, { weight, word: n });
      });
    });
    concepts(stems(text)).forEach((term) => weights.set(term, { weight: SYNONYM, word: -1 }));
    const asked = [...weights.keys()];
    const last = /\w$/.test(query) ? asked.findLast((one) => one[0] !== "=") : null;
    const exact = new Set([...names(query)].flatMap((name) => named.get(name) || []));
    const found = index.search(asked.join(" "), {
      boost: FIELDS,
      boostDocument: (id) => KINDS[entries[id].kind],
      boostTerm: (term) => weights.get(term).weight,
      prefix: (term) => !pasted && term === last,
      fuzzy: (term) => !pasted && !has(term) && term.length > 3 && (term.length > 7 ? 2 : 1),
      weights: { prefix: PREFIX, fuzzy: FUZZY },
      bm25: BM25,
    });
    for (const hit of found) {
      const covered = new Set(hit.queryTerms.map((term) => weights.get(term).word)).size;
      hit.score *= covered ** COVERED / hit.queryTerms.length;
    }
    const rank = ({ id }) => {
      const { address, kind, title } = entries[id];
      if (!exact.has(id)) return -2;
      return NAMED.indexOf(address.includes("#knob-") ? "knob" : kind) + (title === query.trim() ? 0.5 : 0);
    };
    found.sort((a, b) => rank(b) - rank(a) || b.score - a.score || a.id - b.id);
    const pages = new Map();
    const hits = found.filter(({ id }) => {
      const { heading, kind } = entries[id];
      const before = pages.get(heading) || 0;
      pages.set(heading, before + 1);
      return before < SAME_PAGE || exact.has(id) || kind === "term" || kind === "change";
    });
    return hits.slice(0, MOST).map(({ id, score, terms }) => ({ ...entries[id], score, terms }));
  };

  /* Pieces of a text: [words, whether the query asked for them]. */
  const marked = (text, terms) => {
    const wanted = new Set(terms);
    return text.split(/([A-Za-z_][A-Za-z0-9_]*)/).map((piece, n) => [
      piece,
      n % 2 === 1 && split(piece).some((one) => wanted.has(one)),
    ]);
  };

  return { entries: () => entries, load, marked, message, search, stems };
})();
