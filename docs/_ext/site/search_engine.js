/* The search of the manual, for the browser and for node: ManualSearch.search("bus error").
   docs/_ext/site/search_index.py puts this behind the library and the stemmer, and the index behind
   this; how words become stems is written there and here. A page awaits ManualSearch.ready(), which
   reads the index in short steps; who asks before that waits for the rest of it. */
"use strict";

// eslint-disable-next-line no-unused-vars
const ManualSearch = (() => {
  /* -- Weights. A field says how much a word in it tells, a kind how likely it is what one wants. */
  const FIELDS = { title: 5, also: 5, messages: 4, page: 2, snippet: 1.5, body: 1.3 };
  const KINDS = {
    symptom: 1.15, "how-to guide": 1.3, tutorial: 1.2, "glossary term": 1.1, performance: 1, reference: 0.9,
    API: 0.8, "old name": 0.7, record: 0.3,
  };
  const OLD_NAMES = "reference/glossary/old_names.html";
  const NAMED = ["old name", "API", "knob", "glossary term"]; // the last comes first under its own name
  const SYNONYM = 0.5;
  const PHRASE = 1;
  const ALIKE = 2.5; // more, where one name of a place says what the query says, and little else
  const NAME = 2; // SliceSampler
  const PART_OF_NAME = 0.5; // slice, of SliceSampler
  const SPOKEN = 1.5; // what a symbol in the query names
  const ASKED = { "how-to guide": 1.8, tutorial: 1.2 }; // more of the kind, to a question that begins with "how"
  const SURE = 2; // times the score of the next page: Enter opens the first hit at once,
  const SHARE = 0.6; // of what the query tells, at least, if it has that
  const KNOWN = 0.5; // of what a message tells, in one of the first hits: else no page has it
  const FILLERS = new Set("agent error problem torchrl train work".split(" ")); // of any question
  const FILLER = 0.4;
  const COVERED = 2; // power of how much of the query an entry has: a sum over its words
  const RARE = 0.5; // power of what each of them tells
  const BM25 = { k: 1.2, b: 0.7, d: 0.5 };
  const PREFIX = 0.4;
  const GUESSED = 0.7;
  const SAME_PAGE = 2; // entries of one page among the hits
  const MOST = 30;
  const SLICE = 8; // milliseconds of reading, after which a page may do what waits

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
  const REFUSES = /^\W*(?:cannot|can't|could not|couldn't|failed to|unable to) /i; // a message without its class
  const VARYING = [
    /(?:File )?"[^"]*[/\\][^"]*"(?:, line \d+)?/g, // the place in a file
    /(?:[\w.~-]*[/\\])+[\w.-]*/g,
    /torch\.Size\([^)]*\)|\[[\d\s,.x-]*\]|\([\d\s,.x-]*\)/g, // shapes
    /\b0x[\da-f]+\b|\b\d[\w.]*/gi,
  ];
  /* The name that a message misses. */
  const MISSED = /(?:cannot import name|has no attribute) ['"‘`](\w+)|name ['"‘`](\w+)['"’`] is not defined/;
  const OLD = /\b(?:deprecat\w*|renamed?|removed|replace\w*|old name)\b/i;
  const HOW = /^\s*how\s+(?:to|do|does|can|should)\b/i;
  const message = (text) => {
    const lines = text.trim().split("\n");
    const last = lines.findLastIndex((line) => RAISED.test(line));
    return lines.length > 1 && last >= 0 ? lines.slice(last).join("\n").trim() : text;
  };
  const steady = (text) => VARYING.reduce((rest, pattern) => rest.replace(pattern, " "), text);

  /* -- The index. */
  let entries, index, stop, synonyms, german, named;
  let holders; // term -> how many entries have it
  /* "=3" for a phrase of group 3 of the synonyms, looked up by its first stem. */
  const phrases = (list) =>
    list.flatMap((one, at) => (synonyms.get(one) || []).filter(({ phrase }) => phrase.every((part, n) => list[at + n] === part)));
  const concepts = (list) => phrases(list).map(({ concept }) => concept);
  const unique = (...lists) => [...new Set(lists.flat())];
  const telling = (text) => {
    const all = stems(text);
    return unique(all.filter((one) => one.length > 1 && !stop.has(one)), concepts(all));
  };
  const plain = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "").replace(/(?<=...)s$/, "");

  /* What search_index.py packed: texts that end, words folded into the one before, numbers. */
  const CODES = String.fromCharCode(...Array.from({ length: 91 }, (_, n) => n + 35)).replace("\\", "");
  const LAST = 75;
  const ended = (texts) => texts.split("\x7f").slice(0, -1);
  const unfolded = (words) => {
    let word = "";
    return words.split(/(?=[A-Z])/).map((own) => (word = word.slice(0, own.charCodeAt(0) - 65) + own.slice(1)));
  };
  const unpacked = (text) => {
    let number = 0, more = 0;
    const found = [];
    for (const letter of text) {
      const digit = CODES.indexOf(letter);
      if (digit < LAST) {
        found.push((number += more * LAST + digit));
        more = 0;
      } else more = more * (CODES.length - LAST) + digit - LAST;
    }
    return found;
  };

  const read = function* (text) {
    const data = JSON.parse(text);
    yield;
    stop = new Set(data.stop.split(" "));
    synonyms = new Map();
    data.synonyms.forEach((phrases, n) => {
      for (const phrase of phrases.map((text) => text.split(" ")))
        synonyms.set(phrase[0], [...(synonyms.get(phrase[0]) || []), { phrase, concept: `=${n}` }]);
    });
    german = new Map();
    for (const [english, own] of Object.entries(data.german)) own.split(" ").forEach((word) => german.set(word, english));
    named = new Map();
    const [places, titles, snippets, messages, kinds, counts] = data.entries.map(ended);
    const shown = new Set();
    for (const [id, title] of titles.entries()) {
      stems(`${title} ${snippets[id]}`).forEach((term) => shown.add(term));
      yield;
    }
    const terms = [...shown, ...unfolded(data.terms)];
    yield;
    const texts = []; // terms of each body, then of each name
    for (const [n, own] of ended(data.places).entries()) {
      unpacked(own).forEach((text) => (texts[text] ||= []).push(terms[n]));
      yield;
    }
    const ofText = (n, own = texts[n] || []) => unique(own, concepts(own));
    index = new MiniSearch({
      fields: Object.keys(FIELDS),
      extractField: (fields, name) => fields[name],
      tokenize: (list) => (Array.isArray(list) ? list : list.split(" ")),
      processTerm: (term) => term,
      stringifyField: (value) => value,
    });
    entries = [];
    holders = new Map();
    let name = titles.length;
    let page, heading, about; // of the page: its name, title, and the terms of its first entry
    for (const [id, title] of titles.entries()) {
      const place = places[id], kind = kinds[id], snippet = snippets[id];
      const also = Array.from({ length: counts[id] }, () => ofText(name++));
      const anchor = place[0] === "#" ? place : "";
      if (!anchor) [page, heading, about] = [place, title, telling(`${title} ${snippet}`)];
      const borrows = anchor && kind !== "glossary term"; // a definition stands alone
      const ascii = title.toLowerCase().normalize("NFKD").replace(/[^\x00-\x7f]/g, "");
      const slug = ascii.replace(/[^a-z0-9]+/g, "-").replace(/^[-0-9]+|-+$/g, ""); // docutils' make_id
      for (const key of new Set([plain(title), plain(title.replace(/ \(.*\)$/, ""))]))
        named.set(key, [...(named.get(key) || []), id]);
      const fields = {
        id, title: telling(title), also: unique(...also), messages: telling(steady(messages[id])),
        snippet: telling(snippet), page: borrows ? about : [], body: ofText(id),
      };
      index.add(fields);
      for (const term of unique(...Object.keys(FIELDS).map((own) => fields[own])))
        holders.set(term, (holders.get(term) || 0) + 1);
      entries.push({
        id, kind, fields, address: `${page}.html${anchor.replace("*", slug)}`, title, snippet, heading,
        messages: messages[id].split("\n").filter(Boolean),
        names: [fields.title, ...also].map((name) => new Set(name)),
      });
      yield;
    }
  };

  let reading; // what is left of the index
  const load = (text) => (reading = read(text));
  const finish = () => [...reading];
  const ready = async () => {
    for (let began = performance.now(); !reading.next().done; )
      if (performance.now() - began > SLICE) {
        await (self.scheduler?.yield?.() ?? new Promise((resolve) => setTimeout(resolve)));
        began = performance.now();
      }
  };

  /* Words that readers type in German, without umlauts. */
  const inEnglish = (text) =>
    text.normalize("NFKD").replace(/\p{M}/gu, "").replace(WORD, (word) => german.get(word.toLowerCase()) ?? word);

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

  /* Entries of a name that only code for an older release has. */
  const gone = (name) => {
    const all = (named.get(plain(name)) || []).filter((id) => entries[id].title === name);
    const isOld = (id) => entries[id].kind === "old name" || entries[id].address.startsWith(OLD_NAMES);
    return all.every(isOld) ? all : [];
  };

  /* -- Asking. A word that the index does not have stands for the nearest ones, a letter or two away,
        or for the known beginning of it. */
  const has = (term) => holders.has(term);

  /* Letters that are missing, too many, others or swapped with the next one; `most` + 1 for more. */
  const distance = (a, b, most) => {
    let older = [], old = [...Array(b.length + 1).keys()];
    for (let i = 1; i <= a.length; i += 1) {
      const row = [i];
      for (let j = 1; j <= b.length; j += 1) {
        row[j] = Math.min(old[j] + 1, row[j - 1] + 1, old[j - 1] + (a[i - 1] !== b[j - 1]));
        if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], older[j - 2] + 1);
      }
      if (Math.min(...row) > most) return most + 1;
      [older, old] = [old, row];
    }
    return old[b.length];
  };
  const nearest = (words) => {
    let most = words[0].length > 7 ? 2 : 1;
    let near = [];
    for (const term of holders.keys())
      for (const word of words) {
        if (Math.abs(term.length - word.length) > most) continue;
        if (word.length < 6 && term[0] !== word[0]) continue; // else "blow" is "slow", "low" and "flow"
        const away = distance(word, term, most);
        if (away < most) [most, near] = [away, []];
        if (away === most) near.push(term);
      }
    return near;
  };
  /* The shortest name that begins with what is typed of it so far. */
  const begun = (word) => {
    const typed = plain(word);
    if (typed.length < 5 || has(split(word)[0])) return undefined;
    return [...named.keys()].filter((name) => name.startsWith(typed)).sort((a, b) => a.length - b.length)[0];
  };
  const mended = (word, last) => {
    const own = split(word);
    const [first] = own;
    if (!first || first.length < 4 || has(first) || stop.has(first)) return own;
    if (last && [...holders.keys()].some((term) => term.startsWith(first))) return own; // still being typed
    // The stemmer takes "traning" for a form of "trane". codespell:ignore
    const bare = /^([a-z]{4,})(?:ing|ed)$/.exec(word.toLowerCase())?.[1];
    const near = nearest(bare ? [first, bare] : [first]);
    if (near.length) return [...near, ...own.slice(1)];
    for (let end = first.length - 1; end > 4 && end > first.length / 2; end -= 1)
      if (has(first.slice(0, end))) return [first.slice(0, end), ...own.slice(1)];
    return own;
  };

  /* What is found, best first; of one kind all of it, where one is named. `unknown` of it are the
     words of the query that no page has, nor one that is spelled like them; it `isKnown` unless the
     query is a message of which no page has enough. */
  const search = (query, only) => {
    finish();
    const own = message(query);
    const alone = /^\w+(?:Error|Exception)$/.test(own.trim()) && !has(own.trim().toLowerCase());
    const pasted = alone || (RAISED.test(own) && /\s/.test(own.trim()));
    const text = pasted ? steady(own) : inEnglish(own); // who types a path means it
    const weights = new Map(); // of each term, and the words of the query that it stands for
    const spelled = new Map(); // word -> the name that it probably is
    const words = text.match(WORD) || [];
    words.forEach((word, n) => {
      const own = split(word);
      const found = pasted ? own : mended(word, query.endsWith(word));
      const names = new Set(own.slice(1));
      const guessed = found[0] !== own[0];
      if (guessed) spelled.set(word, found[0]);
      found.forEach((term) => {
        if (term.length < 2 || stop.has(term)) return;
        const kind = names.has(term) ? PART_OF_NAME : (names.size ? NAME : 1) * (guessed ? GUESSED : 1);
        const weight = kind * (FILLERS.has(term) ? FILLER : 1);
        const known = weights.get(term);
        const isCertain = !guessed || names.size > 0 || named.has(term);
        if (!known || known.weight < weight) weights.set(term, { weight, word: n, isCertain });
      });
    });
    const unknown = pasted ? [] : words.filter((word) => {
      const [own] = mended(word, query.endsWith(word));
      const typed = query.endsWith(word) && [...holders.keys()].some((term) => term.startsWith(own));
      return own?.length > 3 && !has(own) && !stop.has(own) && !typed;
    });
    const right = text.replace(WORD, (word) => spelled.get(word) || word);
    /* "after a while" has only words that say nothing alone, and counts as one that does. */
    phrases(stems(text)).forEach(({ phrase, concept }, n) => {
      const isWord = !phrase.some((part) => weights.has(part));
      const meaning = isWord ? { weight: PHRASE, word: words.length + n } : { weight: SYNONYM, word: -1 };
      if (isWord || !weights.has(concept)) weights.set(concept, { ...meaning, isCertain: false });
    });
    const asked = [...weights.keys()];
    const last = /\w$/.test(query) ? asked.findLast((one) => one[0] !== "=") : null;
    const spelling = pasted ? [] : [...names(query), ...names(right)]; // a message names keys of its own
    if (!pasted && words.length === 1) spelling.push(begun(words[0]));
    const exact = new Set(spelling.flatMap((name) => named.get(name) || []));
    const missed = MISSED.exec(text)?.slice(1).find(Boolean);
    if (missed) gone(missed).forEach((id) => exact.add(id));
    const symbols = words
      .filter((word) => split(word).length > 1)
      .flatMap((word) => named.get(plain(spelled.get(word) || word)) || []);
    const spoken = new Set(symbols);
    const asksHow = HOW.test(text);
    const found = index.search(asked.join(" "), {
      boost: FIELDS,
      boostDocument: (id) => {
        const { kind } = entries[id];
        return KINDS[kind] * (spoken.has(id) ? SPOKEN : 1) * ((asksHow && ASKED[kind]) || 1);
      },
      filter: ({ id }) => !only || entries[id].kind === only,
      boostTerm: (term) => weights.get(term).weight,
      prefix: (term) => !pasted && term === last,
      weights: { fuzzy: 0, prefix: PREFIX },
      bm25: BM25,
    });
    /* How well a name says what the query says: the share of the query that it has, by weight and
       rarity, with the share of the name that the query has. */
    const told = (term) => (weights.get(term)?.weight ?? PREFIX) * Math.log(1 + entries.length / (holders.get(term) || 1));
    const sum = (terms) => terms.reduce((rest, term) => rest + told(term), 0);
    const isWord = (term) => weights.get(term).word >= 0;
    const whole = sum(asked.filter((term) => isWord(term) && has(term)));
    const alikeness = (name, terms) => {
      const both = terms.filter((term) => name.has(term));
      if (!both.length) return 0;
      const ofQuery = Math.min(1, sum(both) / whole);
      const ofName = both.length / name.size;
      return (2 * ofQuery * ofName) / (ofQuery + ofName);
    };
    /* What terms tell, each word of the query by its best one. */
    const perWord = (terms) => {
      const best = new Map();
      for (const term of terms) {
        const { word } = weights.get(term);
        best.set(word, Math.max(best.get(word) || 0, told(term)));
      }
      return best;
    };
    const most = perWord(asked);
    for (const hit of found) {
      const parts = perWord(hit.queryTerms); // "error" is little of the name of an exception
      const covered = [...parts].reduce((rest, [word, own]) => rest + (pasted ? own : most.get(word)) ** RARE, 0);
      const nearest = Math.max(...entries[hit.id].names.map((name) => alikeness(name, hit.terms)));
      hit.score *= (covered ** COVERED / hit.queryTerms.length) * (1 + ALIKE * nearest);
    }
    const level = ({ address, kind }) => NAMED.indexOf(address.includes("#knob-") ? "knob" : kind);
    const rank = ({ id }) => (exact.has(id) ? level(entries[id]) + (entries[id].title === query.trim() ? 0.5 : 0) : -2);
    found.sort((a, b) => rank(b) - rank(a) || b.score - a.score || a.id - b.id);
    const asksOld = OLD.test(text);
    const old = new Set(
      asksOld
        ? symbols.filter((id) => entries[id].kind === "old name")
        : words.flatMap((word) => gone(spelled.get(word) || word)),
    );
    const at = found.findIndex(({ id }) => old.has(id));
    const to = asksOld ? 0 : 1; // beside what answers, the name of today
    if (at > to) found.splice(to, 0, ...found.splice(at, 1));
    const pages = new Map();
    const shown = new Set(); // old names: a sentence gets one place that tells what became of each
    const hits = found.filter(({ id }) => {
      const { address, kind, title } = entries[id];
      if (old.has(id) && !exact.has(id)) {
        if (shown.has(title)) return false;
        shown.add(title);
      }
      const [page] = address.split("#");
      const before = pages.get(page) || 0;
      pages.set(page, before + 1);
      return before < SAME_PAGE || exact.has(id) || kind === "glossary term" || kind === "old name";
    });
    const [best, ...others] = hits.map(({ id, score, queryTerms }) => ({ ...entries[id], score, queryTerms }));
    const pageOf = ({ address }) => address.split("#")[0];
    const next = others.find((one) => pageOf(one) !== pageOf(best))?.score || 0;
    const isNamed = best && level(best) >= 0 && (exact.has(best.id) || plain(best.title).startsWith(plain(query)));
    /* How much of the query a hit has, by weight and rarity; of what is guessed only names are `sure`. */
    const size = (terms) => [...perWord(terms.filter(isWord)).values()].reduce((rest, one) => rest + one, 0);
    const share = ({ queryTerms }, sure) => size(queryTerms.filter((term) => !sure || weights.get(term).isCertain)) / size(asked);
    const isKnown = isNamed || !(pasted || REFUSES.test(own)) || hits.slice(0, 3).some((hit) => share(hit) >= KNOWN);
    const isSure = isNamed || (isKnown && !unknown.length && best?.score > SURE * next && share(best, true) >= SHARE);
    /* The message of the page that has most words of the pasted one. */
    const alike = (lines, terms) => {
      const count = (line) => telling(steady(line)).filter((term) => terms.includes(term)).length;
      return lines.reduce((best, line) => (count(line) > (best ? count(best) : 0) ? line : best), "");
    };
    const answers = (only ? found : hits.slice(0, MOST)).map(({ id, score, terms }, n) => {
      const entry = entries[id];
      return { ...entry, snippet: (pasted && alike(entry.messages, terms)) || entry.snippet, score, terms, sure: n === 0 && isSure };
    });
    return Object.assign(answers, { unknown: isNamed ? [] : unknown, isKnown });
  };

  /* Pieces of a text: [words, whether the query asked for them]. A symbol is asked for by its name, or
     by `each` of its parts; where `each` is false, by one. */
  const marked = (text, terms, each = true) => {
    const wanted = new Set(terms);
    const asked = ([own, ...parts]) =>
      wanted.has(own) || (parts.length > 0 && parts[each ? "every" : "some"]((part) => wanted.has(part)));
    return text.split(/([A-Za-z_][A-Za-z0-9_]*)/).map((piece, n) => [piece, n % 2 === 1 && asked(split(piece))]);
  };

  return { entries: () => (finish(), entries), load, marked, message, ready, search, stems };
})();
