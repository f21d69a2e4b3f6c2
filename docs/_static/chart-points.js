/* Walk through the values of a chart: one stop of the Tab key, then arrows, Home and End; a finger
   takes the nearest point. Each point has its text in its title (docs/_ext/support/charts.py).
   Without this the text shows to a mouse, and the values stand in the table below the chart, or in its
   CSV file. */
"use strict";

(() => {
  const MARGIN = 8; // pixels to the edge of the window
  const box = document.createElement("div");
  box.className = "term-hint chart-value";
  box.setAttribute("aria-hidden", "true"); // the slider says it
  box.hidden = true;
  document.body.append(box);
  let current = null;

  const place = () => {
    const at = current.getBoundingClientRect();
    const { width, height } = box.getBoundingClientRect();
    const room = document.documentElement.clientWidth - width - MARGIN;
    box.style.left = `${Math.max(MARGIN, Math.min(at.left, room))}px`;
    box.style.top = `${at.top - height - MARGIN}px`;
  };

  const hide = () => {
    if (current) current.classList.remove("is-current");
    current = null;
    box.hidden = true;
  };

  document.querySelectorAll("figure:is(.record-plot, .evidence-figure, .gallery-figure) > svg").forEach((svg) => {
    const points = [...svg.querySelectorAll("g:has(> title)")];
    if (!points.length) return;
    const texts = points.map((point) => point.querySelector("title").textContent);
    let number = 0;

    const say = () => {
      svg.setAttribute("aria-valuenow", number + 1);
      svg.setAttribute("aria-valuetext", texts[number]);
    };

    const show = (to) => {
      hide();
      number = Math.max(0, Math.min(to, points.length - 1));
      current = points[number];
      current.classList.add("is-current");
      say();
      box.textContent = texts[number];
      box.hidden = false;
      place();
    };

    const attributes = { role: "slider", tabindex: 0, "aria-valuemin": 1, "aria-valuemax": points.length };
    Object.entries(attributes).forEach(([name, value]) => svg.setAttribute(name, value));
    say();
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -Infinity, End: Infinity };
    svg.addEventListener("focus", () => svg.matches(":focus-visible") && show(number));
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      show(number + steps[event.key]);
    });
    svg.addEventListener("pointerup", ({ pointerType, clientX, clientY }) => {
      if (pointerType === "mouse") return; // shows titles
      const far = (point) => {
        const { left, right, top, bottom } = point.getBoundingClientRect();
        return Math.hypot((left + right) / 2 - clientX, (top + bottom) / 2 - clientY);
      };
      const nearest = points.map(far);
      show(nearest.indexOf(Math.min(...nearest)));
    });
  });
  document.addEventListener("scroll", () => current && place(), { capture: true, passive: true });
  window.addEventListener("resize", () => current && place());
})();
