/* Show what a glossary term means beside a reference to it: on hover and on keyboard focus. Whoever
   follows the reference gets a way back below the entry.
   docs/_ext/site/term_hints.py writes the hints; its docstring says what happens without this. */
"use strict";

(() => {
  const OPEN_MS = 150; // a pointer that only passes opens nothing
  const CLOSE_MS = 250; // time to move from the link to the hint
  const MARGIN = 8; // pixels to the edge of the window
  let link = null;
  let hint = null;
  let timer = 0;

  const hintOf = (a) => document.getElementById(a.getAttribute("aria-describedby"));

  const place = () => {
    const at = link.getBoundingClientRect();
    const { width, height } = hint.getBoundingClientRect();
    const room = document.documentElement.clientWidth - width - MARGIN;
    const below = at.bottom + height + MARGIN <= window.innerHeight;
    hint.style.left = `${Math.max(MARGIN, Math.min(at.left, room))}px`;
    hint.style.top = `${below || at.top < height + MARGIN ? at.bottom : at.top - height}px`;
  };

  const hide = () => {
    clearTimeout(timer);
    if (hint) hint.hidden = true;
    link = hint = null;
  };

  const show = (a) => {
    clearTimeout(timer);
    if (a === link) return;
    hide();
    link = a;
    hint = hintOf(a);
    hint.hidden = false;
    place();
  };

  const soon = (action, delay) => {
    clearTimeout(timer);
    timer = setTimeout(action, delay);
  };

  // The focus keeps a hint open when the pointer leaves.
  const leave = () => soon(() => document.activeElement !== link && hide(), CLOSE_MS);
  const mouse = (action) => (event) => event.pointerType !== "touch" && action();

  document.querySelectorAll(".term-hint").forEach((box) => {
    box.addEventListener("pointerenter", () => clearTimeout(timer));
    box.addEventListener("pointerleave", mouse(leave));
  });
  document.querySelectorAll('a[aria-describedby^="hint-term-"]').forEach((a) => {
    a.addEventListener("pointerenter", mouse(() => soon(() => show(a), OPEN_MS)));
    a.addEventListener("pointerleave", mouse(leave));
    a.addEventListener("focus", () => a.matches(":focus-visible") && show(a));
    a.addEventListener("blur", () => a === link && hide());
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("scroll", () => link && place(), { capture: true, passive: true });
  window.addEventListener("resize", () => link && place());

  // Below an entry that a link on another page led to: the way back there.
  let entry = document.getElementById(location.hash.slice(1))?.closest(".bd-article dl.glossary > dt");
  while (entry && entry.localName !== "dd") entry = entry.nextElementSibling;
  const from = document.referrer;
  if (entry && from.startsWith(`${location.origin}/`) && new URL(from).pathname !== location.pathname) {
    const arrived = history.length;
    const back = document.createElement("a");
    back.href = from;
    back.className = "term-back";
    back.textContent = "Back to where you came from";
    back.addEventListener("click", (event) => {
      if (history.length !== arrived) return; // the reader went on within the page
      event.preventDefault();
      history.back();
    });
    entry.append(back);
  }
})();
