/* Marks in "On this page" the section that is being read: the last one that begins in the upper part
   of the window or above; behind a jump, the one that holds the target, until the reader scrolls on.
   docs/_templates/page-toc.html */
"use strict";

(() => {
  const UPPER = 0.3; // share of the window's height
  const LONG = 24; // entries; of more, the inner ones show for the section that is being read
  const list = document.getElementById("on-this-page");
  if (!list) return;
  const bar = list.closest(".bd-sidebar-secondary");
  const links = [...list.querySelectorAll("a")];
  const places = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
  let jumped = false;
  list.classList.toggle("is-long", links.length > LONG);

  const mark = (begins) => {
    const current = links[places.findLastIndex((place) => place && begins(place))];
    links.forEach((link) => {
      link.classList.toggle("active", link === current);
      if (link === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
    list.querySelectorAll(".toc-entry").forEach((entry) => {
      entry.classList.toggle("active", Boolean(current) && entry.contains(current));
    });
    if (!current) return;
    const [inner, outer] = [current.getBoundingClientRect(), bar.getBoundingClientRect()];
    if (inner.top < outer.top || inner.bottom > outer.bottom) bar.scrollTop += inner.top - outer.top - outer.height / 2;
  };

  const scrolled = () => {
    if (jumped) return;
    const { scrollHeight } = document.documentElement;
    const atEnd = scrollY > 0 && scrollY + innerHeight >= scrollHeight - 2;
    const line = atEnd ? innerHeight : innerHeight * UPPER;
    mark((place) => place.getBoundingClientRect().top < line);
  };

  const jump = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    jumped = Boolean(target);
    if (!target) return scrolled();
    const isBefore = (place) => place.compareDocumentPosition(target) & Node.DOCUMENT_POSITION_FOLLOWING;
    mark((place) => place === target || isBefore(place));
  };

  window.addEventListener("scroll", scrolled, { passive: true });
  ["wheel", "touchmove", "keydown", "pointerdown"].forEach((own) => {
    window.addEventListener(own, () => (jumped = false), { passive: true });
  });
  window.addEventListener("hashchange", jump);
  // A second click on the same link changes no address.
  window.addEventListener("click", ({ target }) => {
    const link = target.closest("a");
    if (link && link.hash && link.href === location.href) jump();
  });
  jump();
})();
