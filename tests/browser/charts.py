"""What a reader cannot make out in the drawings of a page: a probe like those of ``probes``.

A drawing is an ``svg`` element of the article that is no icon. Sizes are measured as the browser
draws them, with the fonts and the scale of the page: a text by its letters alone, turned as it is
turned. A text is crossed by a line that is drawn through its letters: an axis, a line or an arrow
of the data, the edge of a mark. A line of a grid is too pale to count, as is what a filled shape
below the text hides. Axes are found by the ids that matplotlib gives; theirs is a scale if a tick
of y is a number.
"""

from tests.browser.probes import settle

DRAWINGS = "article svg:not([aria-hidden], .sd-octicon, button svg)"
PHONE = 500  # pixels: a narrower window is a phone's
SMALLEST = 10  # pixels, the font of a text on a phone
SLACK = 1.5  # pixels by which a text may leave its drawing or reach over another one
SPACE = 0.2  # of the size of the letters: nearer, two texts of a line read as one word
FLAT = 48  # pixels of height of axes with a scale: less shows no course
PALE = 2  # contrast of a line to the page: below, a text over it can be read
CONTRAST = {"small": 4.5, "large": 3, "series": 3}  # WCAG 2.2, 1.4.3 and 1.4.11

# What folds and tabs hold is measured, too.
UNFOLD = """() => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
    for (const tab of document.querySelectorAll(".sd-tab-content")) tab.style.display = "block";
}"""

MEASURE = r"""([drawings, slack, space, pale_line, flat_below, contrast]) => {
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

    // How far a point is in a convex quadrangle, below zero outside.
    const inside = (corners, p) => Math.min(...corners.map((a, i) => {
        const b = corners[(i + 1) % 4], o = corners[(i + 2) % 4];
        const across = (c) => (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
        return across(p) * Math.sign(across(o)) / (Math.hypot(b.x - a.x, b.y - a.y) || 1);
    }));
    const edges = (box, more) => ({left: box.left - more, right: box.right + more,
                                   top: box.top - more, bottom: box.bottom + more});
    const within = (box, p) =>
        box.left <= p.x && p.x <= box.right && box.top <= p.y && p.y <= box.bottom;
    const hull = (corners) => ({
        left: Math.min(...corners.map((c) => c.x)), right: Math.max(...corners.map((c) => c.x)),
        top: Math.min(...corners.map((c) => c.y)), bottom: Math.max(...corners.map((c) => c.y)),
    });
    const meet = (a, b) =>
        a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const clipped = (e) => {  // the part of the drawing in which an element shows
        const clip = e.closest("[clip-path]");
        const shape = clip && document.querySelector(
            `${clip.getAttribute("clip-path").match(/#[^)]+/)[0]} > *`);
        if (!shape) return {left: -Infinity, right: Infinity, top: -Infinity, bottom: Infinity};
        const {x, y, width, height} = shape.getBBox(), m = clip.getScreenCTM();
        return hull([[x, y], [x + width, y + height]]
            .map(([u, v]) => new DOMPoint(u, v).matrixTransform(m)));
    };
    // Points of a line on the screen, a pixel apart, as far as they show.
    const traced = (e) => {
        const matrix = e.getScreenCTM(), clip = edges(clipped(e), 1), found = [];
        const scale = Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c));
        const length = e.getTotalLength(), step = 1 / scale;
        for (let at = 0; at <= length; at += step) {
            const point = e.getPointAtLength(at).matrixTransform(matrix);
            if (within(clip, point)) found.push(point);
        }
        return {found, half: parseFloat(getComputedStyle(e).strokeWidth) * scale / 2};
    };

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
        const hides = (shape, e, below, point) =>
            shape !== e && covers(shape, point) && (paint(shape, "fill", svg) || [])[3] === 1
            && e.compareDocumentPosition(shape) & Node.DOCUMENT_POSITION_FOLLOWING
            && below.compareDocumentPosition(shape) & Node.DOCUMENT_POSITION_PRECEDING;
        const lines = shapes.filter((shape) => {
            const stroke = paint(shape, "stroke", svg);
            return shape instanceof SVGGeometryElement && stroke
                && ratio(over(stroke, page), page) >= pale_line;
        });
        const marks = shapes.filter((shape) => shape.localName === "use");
        const tracks = new Map();
        const crossed = texts.flatMap(({e, said, corners}) => {
            const box = edges(hull(corners), -slack);
            const middle = {x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2};
            const line = lines.some((shape) => {
                const reach = edges(shape.getBoundingClientRect(), 2);
                if (!meet(reach, box)) return false;
                if (!tracks.has(shape)) tracks.set(shape, traced(shape));
                const {found, half} = tracks.get(shape);
                return found.some((point) => inside(corners, point) > slack - Math.min(half, slack)
                    && !shapes.some((one) => hides(one, shape, e, point)));
            });
            const mark = marks.some((shape) => {
                const at = shape.getBoundingClientRect(), seen_in = clipped(shape);
                const center = {x: (at.left + at.right) / 2, y: (at.top + at.bottom) / 2};
                return !within(at, middle) && within(edges(seen_in, 1), center)
                    && meet(edges(at, -slack), box);
            });
            return line || mark ? [said] : [];
        });
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
        const flat = [...svg.querySelectorAll('g[id*="axes_"]')].map((axes) => ({
            ticks: [...axes.querySelectorAll('g[id*="ytick_"] text')].map((e) => e.textContent),
            height: axes.querySelector('g[id*="patch_"] path').getBoundingClientRect().height,
        })).filter(({ticks, height}) => ticks.some((text) => /^[\u2212-]?\d/.test(text))
            && height < flat_below).map(({height}) => Math.round(height));
        const legend = svg.querySelectorAll('g[id*="legend_"] text').length;
        return {
            label: svg.getAttribute("aria-label") || "",
            outside, touching, crossed, flat, legend, pale, faint,
            sizes: texts.map(({said, size}) => [said, size]),
        };
    });
}"""


def drawings(page):
    """What is wrong with each drawing of the page as it stands; `faults` puts it into words."""
    page.evaluate(UNFOLD)
    settle(page)
    return page.evaluate(MEASURE, [DRAWINGS, SLACK, SPACE, PALE, FLAT, CONTRAST])


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
    if drawing["crossed"]:
        said.append(f"a line or a mark crosses text: {drawing['crossed']}")
    if drawing["flat"]:
        said.append(f"axes lower than {FLAT} px: {drawing['flat']}")
    if drawing["legend"]:
        said.append(f"a legend of {drawing['legend']} names: name a line where it is")
    small = [(round(size, 1), text) for text, size in drawing["sizes"] if size < SMALLEST - 0.05]
    if small and width < PHONE:
        said.append(f"{len(small)} texts below {SMALLEST} px: {sorted(set(small))[:4]}")
    if drawing["pale"]:
        said.append(f"contrast of text below {CONTRAST['small']}: {drawing['pale']}")
    if drawing["faint"]:
        said.append(f"contrast of a series below {CONTRAST['series']}: {drawing['faint']}")
    return said
