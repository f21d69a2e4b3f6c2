/* The filter of the debugging map and the search of the error index.
   docs/_ext/symptoms/directives.py writes both pages; its docstring says what they are without this. */
"use strict";

(() => {
  const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
  const plural = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

  /* -- The map: the symptoms with most of what is asked, nearest first. A word counts where a word of
        the symptom starts with it, but for its ending; more in a title than in a text, and more where
        few symptoms have it. A name that no symptom has is taken apart: SyncDataCollector. */
  const NEAR = 0.6; // share of the best score that a row needs, unless no row has more words
  const STOP = new Set(
    ("a am an and are as at be but by can do does for from how i in is it its me my no not of on or so that the " +
      "this to was what when while why with doesn don isn").split(" "),
  );
  const apart = (text) => text.replace(/(?<=[a-z\d])(?=[A-Z])|_/g, " ");
  const stem = (word) => word.replace(/(?<=\w{3})(ings?|ed|e?s|e)$/, "");
  const textOf = (node) => (node ? ` ${node.textContent} ${apart(node.textContent)}`.toLowerCase() : "");
  const holds = (text, start) => {
    let at = text.indexOf(start);
    while (at >= 0 && /[\p{L}\p{N}]/u.test(text.charAt(at - 1))) at = text.indexOf(start, at + 1);
    return at >= 0;
  };

  const filter = (form) => {
    const rows = [...document.querySelectorAll("details.symptom")].map((row) => {
      const after = (start) => {
        const name = [...row.querySelectorAll("dt")].find((dt) => dt.textContent.startsWith(start));
        return textOf(name && name.nextElementSibling);
      };
      const title = textOf(row.querySelector("summary")) + after("Also called");
      const texts = [title, after("Seen"), textOf(row)]; // heaviest first
      return { row, group: row.parentNode, texts };
    });
    const groups = [...new Set(rows.map(({ group }) => group))];
    const nearest = document.createElement("div");
    if (groups.length) groups[0].before(nearest);
    const known = (word) => rows.some(({ texts }) => texts.some((text) => holds(text, stem(word))));
    const asks = (typed) => {
      const names = typed.match(/[\p{L}\p{N}_]+/gu) || [];
      const all = words(names.map((name) => (known(name.toLowerCase()) ? name : apart(name))).join(" "));
      const telling = all.filter((word) => word.length > 1 && !STOP.has(word));
      return [...new Set((telling.length ? telling : all).map(stem))];
    };

    /* What is chosen: the words, and the pressed button of each name. */
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

    const show = () => {
      const { q, subsystem, effect } = chosen();
      const asked = asks(q);
      const found = rows.map(({ row, group, texts }) => {
        const fits = row.dataset.subsystem === (subsystem || row.dataset.subsystem) &&
          row.dataset.effect === (effect || row.dataset.effect);
        const places = asked.map((word) => (fits ? texts.length - texts.findIndex((text) => holds(text, word)) : 0));
        return { row, group, fits, places: places.map((place) => (place > texts.length ? 0 : place)) };
      });
      const rare = asked.map((_, n) => Math.log(1 + rows.length / found.filter(({ places }) => places[n]).length));
      found.forEach((one) => {
        one.count = one.places.filter(Boolean).length;
        one.score = one.places.reduce((sum, place, n) => sum + (place && place * rare[n]), 0);
      });
      const most = Math.max(0, ...found.map(({ count }) => count));
      const best = Math.max(0, ...found.map(({ score }) => score));
      const near = ({ count, score }) => count && (count === most || score >= NEAR * best);
      found.forEach((one) => (one.row.hidden = !(one.fits && (!asked.length || near(one)))));
      if (asked.length) found.sort((a, b) => b.score - a.score);
      found.forEach(({ row, group }) => (asked.length ? nearest : group).append(row));
      groups.forEach((group) => (group.hidden = !group.querySelector("details:not([hidden])")));
      const shown = found.filter(({ row }) => !row.hidden).length;
      form.querySelector("output").textContent =
        `${shown} of ${plural(rows.length, "symptom")}` +
        (!shown ? ". Try other words, or another way:" : asked.length ? ", the nearest first" : "");
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
    choose(Object.fromEntries(new URLSearchParams(location.search)));
    form.hidden = false;
    show();

    /* A link leads to a symptom, open, and to a section; also where the filter hides it. */
    const lead = () => {
      const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (!place) return;
      if (place.closest("[hidden]")) {
        choose({});
        show();
      }
      if (place.matches("details.symptom")) place.open = true;
      place.scrollIntoView();
    };
    window.addEventListener("hashchange", lead);
    lead();
  };

  /* The link of a symptom is copied instead of followed, where a browser lets a page copy. */
  if (navigator.clipboard) {
    document.querySelectorAll(".symptom-link").forEach((link) => {
      link.textContent = "Copy link";
      link.addEventListener("click", async (event) => {
        event.preventDefault();
        await navigator.clipboard.writeText(location.href.split(/[?#]/)[0] + link.hash);
        link.textContent = "Link copied";
      });
    });
  }

  /* -- The index: numbers, names in quotes and shapes differ from run to run, so they do not count.
        A word that few messages have says more than one that many have. */
  const ENOUGH = 0.6; // share of the weight, of the message or of a shorter pasted text, in both
  const distinct = (text) => {
    // A longer text in quotes is the message itself.
    const plain = text.replace(/(?<!\w)(["'`]).{0,40}?\1(?!\w)/g, " ").replace(/[[(][^\])]*[\])]/g, " ");
    const found = new Set(words(plain).filter((word) => /^[^\d]{2,}$/.test(word)));
    return found.size ? found : new Set(words(text));
  };

  const search = (form) => {
    const entries = [...document.querySelectorAll(".error-entry")].map((entry) => ({
      entry,
      own: [...distinct(entry.querySelector("pre").textContent)],
      every: [...new Set(words(entry.querySelector("pre").textContent))],
    }));
    const home = entries[0] && entries[0].entry.parentNode;
    const holders = new Map();
    entries.forEach(({ every }) => every.forEach((word) => holders.set(word, (holders.get(word) || 0) + 1)));
    const weight = (word) => Math.log(1 + entries.length / (holders.get(word) || 1));
    const sum = (list) => list.reduce((total, word) => total + weight(word), 0);
    const show = () => {
      const pasted = form.elements.message.value;
      const asked = new Set(words(pasted));
      const given = sum([...distinct(pasted)]);
      const inBoth = (list) => sum(list.filter((word) => asked.has(word)));
      const ranked = entries.map(({ entry, own, every }) => {
        const share = inBoth(own) / Math.min(sum(own), given || 1);
        return { entry, share: Math.round(100 * share) / 100, names: inBoth(every) };
      });
      if (asked.size) ranked.sort((a, b) => b.share - a.share || b.names - a.names);
      const shown = ranked.filter(({ share }) => !asked.size || share >= ENOUGH);
      entries.forEach(({ entry }) => (entry.hidden = true));
      shown.forEach(({ entry }) => {
        entry.hidden = false;
        home.append(entry);
      });
      form.querySelector("output").textContent =
        asked.size && !shown.length
          ? "No symptom raises this message. Try its words in the filter of the map."
          : `${shown.length} of ${plural(entries.length, "message")}${asked.size ? ", the nearest first" : ""}`;
    };
    form.addEventListener("input", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
    show();
  };

  document.querySelectorAll("form.symptom-filter").forEach(filter);
  document.querySelectorAll("form.error-search").forEach(search);
})();
