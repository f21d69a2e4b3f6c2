"""What a reader cannot make out in the drawings of a page: a probe like those of ``probes``.

A drawing is an ``svg`` element of the article that is no icon. Sizes are measured as the browser
draws them, with the fonts and the scale of the page: a text by its letters alone, turned as it is
turned.
"""

from tests.browser.probes import settle

DRAWINGS = "article svg:not([aria-hidden], .sd-octicon, button svg)"
PHONE = 500  # pixels: a narrower window is a phone's
SMALLEST = 10  # pixels, the font of a text on a phone
SLACK = 1.5  # pixels by which a text may leave its drawing or reach over another one
SPACE = 0.2  # of the size of the letters: nearer, two texts of a line read as one word
CONTRAST = {"small": 4.5, "large": 3, "series": 3}  # WCAG 2.2, 1.4.3 and 1.4.11

# What folds and tabs hold is measured, too.
UNFOLD = """() => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
    for (const tab of document.querySelectorAll(".sd-tab-content")) tab.style.display = "block";
}"""

MEASURE = """([drawings, slack, space, contrast]) => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const rgba = (color) => {  // of any way to write a color
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], below) =>
        [r, g, b].map((value, i) => value * a + below[i] * (1 - a));
    const luminance = (color) => color.map((value) => value / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ratio = (one, other) => {
        const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const ground = (e) => {  // the color of the page behind an element
        if (!e) return [255, 255, 255];
        const color = rgba(getComputedStyle(e).backgroundColor);
        return color[3] === 1 ? color.slice(0, 3) : over(color, ground(e.parentElement));
    };
    const opacity = (e, svg) =>
        getComputedStyle(e).opacity * (e === svg ? 1 : opacity(e.parentElement, svg));
    const paint = (e, kind, svg) => {  // fill or stroke, with its opacity; null for none
        const style = getComputedStyle(e);
        const target = e.localName === "use" && document.querySelector(e.getAttribute("href")
            || e.getAttributeNS("http://www.w3.org/1999/xlink", "href"));
        const value = (target && target.style[kind]) || style[kind];
        if (value === "none" || (kind === "stroke" && parseFloat(style.strokeWidth) === 0))
            return null;
        const color = rgba(value === "currentcolor" ? style.color : value);
        color[3] *= style[kind + "Opacity"] * opacity(e, svg);
        return color[3] > 0 ? color : null;
    };
    const hex = (color) => "#" + color.slice(0, 3)
        .map((value) => Math.round(value).toString(16).padStart(2, "0")).join("");
    const seen = (e) => e.checkVisibility({opacityProperty: true, visibilityProperty: true});

    const letters = (e, more = 0) => {  // the corners of what is printed, on the screen
        const style = getComputedStyle(e), box = e.getBBox(), matrix = e.getScreenCTM();
        canvas.font = ["fontStyle", "fontWeight", "fontSize", "fontFamily"]
            .map((part) => style[part]).join(" ");
        const ink = canvas.measureText(e.textContent);
        const base = e.getStartPositionOfChar(0).y;
        const top = base - ink.actualBoundingBoxAscent, end = base + ink.actualBoundingBoxDescent;
        const left = box.x - more, right = box.x + box.width + more;
        return [[left, top], [right, top], [right, end], [left, end]]
            .map(([x, y]) => new DOMPoint(x, y).matrixTransform(matrix));
    };
    // How deep one quadrangle is in another: the least shift that would part them.
    const depth = (one, other) => Math.min(...[one, other].flatMap((corners) => [0, 1].map((i) => {
        const dx = corners[i + 1].x - corners[i].x, dy = corners[i + 1].y - corners[i].y;
        const length = Math.hypot(dx, dy) || 1;
        const [p, q] = [one, other].map((points) =>
            points.map((c) => (c.x * -dy + c.y * dx) / length));
        return Math.min(Math.max(...p) - Math.min(...q), Math.max(...q) - Math.min(...p));
    })));

    return [...document.querySelectorAll(drawings)].filter(seen).map((svg) => {
        const box = svg.getBoundingClientRect(), page = ground(svg);
        const texts = [...svg.querySelectorAll("text, tspan")].filter(seen)
            .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
            .map((e) => {
                const own = parseFloat(getComputedStyle(e).fontSize), m = e.getScreenCTM();
                const scale = Math.sqrt(Math.abs(m.a * m.d - m.b * m.c));
                return {
                    e, said: e.textContent.trim(), whole: e.closest("text"), size: own * scale,
                    corners: letters(e), apart: letters(e, own * space / 2 + slack / scale / 2),
                };
            });
        const shapes = [...svg.querySelectorAll("path, rect, circle, ellipse, line, polygon, "
                + "polyline, use, image")]
            .filter((e) => seen(e) && !e.closest("defs, clipPath, marker, pattern, mask"));
        const outside = texts.filter(({corners}) => corners.some((c) =>
            c.x < box.left - slack || c.x > box.right + slack
            || c.y < box.top - slack || c.y > box.bottom + slack)).map(({said}) => said);
        const touching = texts.flatMap((one, i) => texts.slice(i + 1)
            .filter((other) => one.whole !== other.whole
                && depth(one.apart, other.apart) > slack)
            .map((other) => [one.said, other.said]));

        const covers = (shape, {x, y}) => {
            if (!(shape instanceof SVGGeometryElement)) {
                const r = shape.getBoundingClientRect();
                return r.left < x && x < r.right && r.top < y && y < r.bottom;
            }
            const inverse = shape.getScreenCTM().inverse();
            return shape.isPointInFill(new DOMPoint(x, y).matrixTransform(inverse));
        };
        const pale = texts.flatMap(({e, said, size, corners}) => {
            const middle = {x: (corners[0].x + corners[2].x) / 2,
                            y: (corners[0].y + corners[2].y) / 2};
            const below = shapes.filter((shape) => covers(shape, middle)
                && shape.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING);
            if (below.some((shape) => shape.localName === "image")) return [];
            const behind = below.map((shape) => paint(shape, "fill", svg)).filter(Boolean)
                .reduce((color, fill) => over(fill, color), page);
            const found = ratio(over(paint(e, "fill", svg) || [0, 0, 0, 0], behind), behind);
            const bold = getComputedStyle(e).fontWeight >= 700;
            const large = size >= 24 || (bold && size >= 18.66);
            const wanted = contrast[large ? "large" : "small"];
            return found < wanted ? [[said, found.toFixed(2)]] : [];
        });
        // A series is what has a color of its own; what tells it from the page may be its edge,
        // and beside a line a band of its color may be pale.
        const ink = hex(rgba(getComputedStyle(svg).color)), best = new Map();
        for (const shape of shapes) {
            const paints = ["fill", "stroke"].map((kind) => paint(shape, kind, svg));
            const color = paints.find((p) => p && hex(p) !== ink);
            if (!color || shape.localName === "image") continue;
            const found = paints.filter(Boolean).map((p) => ratio(over(p, page), page));
            best.set(hex(color), Math.max(...found, best.get(hex(color)) || 0));
        }
        const faint = [...best].filter(([, found]) => found < contrast.series)
            .map(([color, found]) => [color, found.toFixed(2)]);
        return {
            label: svg.getAttribute("aria-label") || "", outside, touching, pale, faint,
            sizes: texts.map(({said, size}) => [said, size]),
        };
    });
}"""


def drawings(page):
    """What is wrong with each drawing of the page as it stands; `faults` puts it into words."""
    page.evaluate(UNFOLD)
    settle(page)
    return page.evaluate(MEASURE, [DRAWINGS, SLACK, SPACE, CONTRAST])


def names_nothing(label, file=""):
    """Whether an alternative text is empty or the name of a *file*, as the gallery writes it."""
    words = label.replace("_", " ")
    return len(words.split()) < 3 or "sphx glr" in words or words in file.replace("_", " ")


def faults(drawing, width):
    """Sentences on one of `drawings`, measured in a window of *width* pixels."""
    said = []
    if names_nothing(drawing["label"]):
        said.append(f"its alternative text says nothing: {drawing['label']!r}")
    if drawing["outside"]:
        said.append(f"text leaves its drawing: {drawing['outside']}")
    if drawing["touching"]:
        said.append(f"texts overlap: {drawing['touching']}")
    small = [(round(size, 1), text) for text, size in drawing["sizes"] if size < SMALLEST - 0.05]
    if small and width < PHONE:
        said.append(f"{len(small)} texts below {SMALLEST} px: {sorted(set(small))[:4]}")
    if drawing["pale"]:
        said.append(f"contrast of text below {CONTRAST['small']}: {drawing['pale']}")
    if drawing["faint"]:
        said.append(f"contrast of a series below {CONTRAST['series']}: {drawing['faint']}")
    return said
